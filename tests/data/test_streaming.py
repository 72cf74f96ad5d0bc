from __future__ import annotations

import pytest

from benchmarks.streaming import SIDE, WRITERS, peaks


@pytest.mark.serial
@pytest.mark.parametrize("name", WRITERS)
def test_memory_stays_flat(name: str) -> None:
    """Ten times as many slices need no more memory; held as they are on the disk they would need all of `added`."""
    small, large = peaks(name, n_slices=18)
    added = 9 * 18 * SIDE**2 * 2 / 2**20
    assert large - small < added / 2
