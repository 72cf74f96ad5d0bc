from __future__ import annotations

import pytest

from benchmarks.streaming import ratio


@pytest.mark.serial
def test_memory_stays_flat() -> None:
    small, large = ratio(n_slices=60)
    assert large / small < 1.2
