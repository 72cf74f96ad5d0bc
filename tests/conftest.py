"""Settings shared by all tests: one thread, a Ctrl-C that works, and reproducible property tests."""

from __future__ import annotations

import signal

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# a shell starts background jobs with Ctrl-C ignored, and their children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("ulda", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ulda")
