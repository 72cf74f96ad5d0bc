"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the block calls the function it is given; a second Ctrl-C interrupts at once.

    A program with its own handler of the signal, and a thread other than the main one, are left alone.
    """
    is_asked = False

    def hold(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True

    def check() -> None:
        if is_asked:
            raise KeyboardInterrupt

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield check
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
