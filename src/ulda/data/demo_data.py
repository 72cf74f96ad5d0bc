"""The small real domains that come with the package."""

from __future__ import annotations

from pathlib import Path

from ulda.data.domain import Domain
from ulda.errors import UldaError

_FOLDER = Path(__file__).parent / "demo"


def demo_names() -> list[str]:
    """Return the names `demo` knows.

    Examples
    --------
    >>> demo_names()
    ['brain-multicoil', 'kidney', 'knee']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.h5"))


def demo(name: str = "knee") -> Domain:
    """Return an embedded domain; its licence is in ``demo(name).header.licence``.

    Examples
    --------
    >>> demo("brain-multicoil").n_coils
    4
    """
    path = _FOLDER / f"{name}.h5"
    if name not in demo_names():
        raise UldaError(f"there is no embedded domain {name!r}; the names are {', '.join(demo_names())}")
    return Domain.open(path)
