from __future__ import annotations

import signal
import threading

from ulda.training.interrupt import deferred_interrupt


def interrupted(n_signals: int) -> list[str]:
    """Return how far a loop gets in which Ctrl-C is pressed during the first step."""
    reached = []
    with deferred_interrupt() as check:
        try:
            check()
            for _ in range(n_signals):
                signal.raise_signal(signal.SIGINT)
            reached.append("the end of the step")
            check()
            reached.append("the next step")
        except KeyboardInterrupt:
            reached.append("interrupted")
    return reached


def test_ctrl_c_waits_until_it_is_asked_for() -> None:
    assert interrupted(0) == ["the end of the step", "the next step"]
    assert interrupted(1) == ["the end of the step", "interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    assert interrupted(2) == ["interrupted"]


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
