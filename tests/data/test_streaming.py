from __future__ import annotations

import pytest

from benchmarks.streaming import WRITERS, peaks


@pytest.mark.serial
@pytest.mark.parametrize("name", WRITERS)
def test_memory_stays_flat(name: str) -> None:
    small, large = peaks(name, n_slices=60)
    assert large / small < 1.2
