from __future__ import annotations

import signal
import threading

import pytest

from ulda.training.interrupt import deferred_interrupt


def test_ctrl_c_waits_until_it_is_asked_for() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        reached.append("the end of the step")
        check()
        reached.append("the next step")
    assert reached == ["the end of the step"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one was held back, too")


def test_other_handlers_and_threads_are_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with deferred_interrupt() as check:
            signal.raise_signal(signal.SIGINT)
            check()
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)

    def work() -> None:
        with deferred_interrupt() as check:
            check()
            seen.append(0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[-1] == 0
