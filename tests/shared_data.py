"""Finds the real MRI data that lies beside the project; tests that need it skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data_file(name: str) -> Path:
    """Return the path of a shared data file or skip the calling test."""
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"the shared data file {name} is not on this machine")
    return path
