"""Cartesian sampling masks: which whole phase-encode lines are measured.

Every generator is seeded and draws only uniform numbers, so a seed gives the same mask everywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.documents import parse_json
from ulda.io.hdf5_input import is_hdf5, open_hdf5
from ulda.io.numpy_input import (
    NPY_MAGIC,
    ZIP_MAGICS,
    map_npy,
    members,
    open_npz,
    read_member,
    read_member_header,
)
from ulda.io.untrusted import read_text, reading, regular_file

MOST_LINES = 8192
"""No slice has more lines."""

MOST_TEXT = 2**20
"""Characters of a mask as text or JSON."""

HEAD_BYTES = 1024

DETECTED = "detected"
"""The kind of a mask of the lines that are not empty."""

GAUSSIAN_WIDTH = 0.15
"""Standard deviation of the sampling density of `cartesian_mask`, as a fraction of the lines."""


@dataclass(frozen=True)
class Mask:
    """A set of sampled lines with its provenance.

    Attributes
    ----------
    sampled
        One bool per line, in centred order: the k-space origin is line ``n_lines // 2``.
    kind
        The generator, or ``"file"``, or ``"detected"`` for the lines that are not empty where a file names none.
    seed
        The seed it was drawn with; None for masks from a file.

    Examples
    --------
    >>> mask = cartesian_mask(20, 0.25, seed=1)
    >>> mask.n_lines, mask.n_sampled, mask.ratio, mask.acceleration
    (20, 5, 0.25, 4.0)
    """

    sampled: tuple[bool, ...]
    kind: str = "file"
    seed: int | None = None

    def __post_init__(self) -> None:
        if not any(self.sampled):
            raise UldaError("a mask needs at least one sampled line, but this one samples none")

    @property
    def n_lines(self) -> int:
        """The number of lines, sampled or not."""
        return len(self.sampled)

    @property
    def n_sampled(self) -> int:
        """The number of sampled lines."""
        return sum(self.sampled)

    @property
    def ratio(self) -> float:
        """The realised sampling ratio."""
        return self.n_sampled / self.n_lines

    @property
    def acceleration(self) -> float:
        """The realised acceleration, the inverse of the ratio."""
        return self.n_lines / self.n_sampled

    @cached_property
    def lines(self) -> Tensor:
        """The sampled lines as a bool tensor ``(n_lines,)``."""
        return torch.tensor(self.sampled, dtype=torch.bool)

    def along(self, axis: int) -> Tensor:
        """Return the lines in a shape to multiply k-space ``(..., H, W)`` with, its phase-encode axis being -2 or -1.

        Examples
        --------
        >>> mask = Mask((False, True, False))
        >>> mask.along(-2).shape, mask.along(-1).shape
        (torch.Size([3, 1]), torch.Size([3]))
        """
        return self.lines[:, None] if axis == -2 else self.lines

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name the sampled lines, whatever drew them."""
        text = f"{self.n_lines}:" + "".join("1" if line else "0" for line in self.sampled)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def n_center(self) -> int:
        """The number of calibration lines: of the largest centre that `center_crop_or_pad` cuts without a gap."""
        for n in range(1, self.n_lines + 1):
            start = self.n_lines // 2 - n // 2
            if not all(self.sampled[start : start + n]):
                return n - 1
        return self.n_lines

    def as_dict(self) -> dict[str, Any]:
        """Describe the mask for a result file."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "n_lines": self.n_lines,
            "n_sampled": self.n_sampled,
            "ratio": self.ratio,
            "acceleration": self.acceleration,
            "hash": self.hash,
            "sampled": [int(i) for i in np.flatnonzero(self.sampled)],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Make the mask that `as_dict` described."""
        n_lines, seed = fields["n_lines"], fields["seed"]
        if type(n_lines) is not int or not 1 <= n_lines <= MOST_LINES:
            raise ValueError(f"a mask has 1 to {MOST_LINES} lines, but it says {n_lines!r}")
        if seed is not None and type(seed) is not int:
            raise ValueError(f"the seed of a mask is a whole number, but it says {seed!r}")
        sampled = np.zeros(n_lines, dtype=bool)
        sampled[np.array(fields["sampled"], np.intp)] = True
        return cls(tuple(sampled.tolist()), kind=str(fields["kind"]), seed=seed)

    def save(self, path: str | Path) -> None:
        """Write the mask as JSON, readable by `load_mask`."""
        with atomic_output(path, overwrite=True) as temporary:
            temporary.write_text(json.dumps(self.as_dict()) + "\n", encoding="utf-8")


def cartesian_mask(n_lines: int, ratio: float, center: float = 0.05, seed: int = 0) -> Mask:
    """Draw exactly ``round(ratio * n_lines)`` lines, dense around the origin.

    The lowest ``round(center * n_lines)`` lines are always in; the others are drawn without
    replacement with Gaussian weight towards the centre.

    Examples
    --------
    >>> mask = cartesian_mask(64, 0.2, seed=0)
    >>> mask.n_sampled, mask.sampled[31:34]
    (13, (True, True, True))
    """
    _check_lines(n_lines)
    _check_fraction("center", center)
    if not 0 < ratio <= 1:
        raise UldaError(f"the sampling ratio must lie in (0, 1], but it is {ratio:g}")
    if ratio < center:
        raise UldaError(
            f"the sampling ratio {ratio:g} is below the centre fraction {center:g}, whose lines are always sampled;"
            " raise the ratio or lower the centre fraction"
        )
    n_sampled = round(ratio * n_lines)
    if n_sampled == 0:
        raise UldaError(f"a ratio of {ratio:g} of {n_lines} lines rounds to zero lines; raise the ratio")
    sampled = _low_frequencies(n_lines, center)
    distance = (np.arange(n_lines) - n_lines // 2) / n_lines
    weight = np.exp(-0.5 * (distance / GAUSSIAN_WIDTH) ** 2)
    # Efraimidis and Spirakis: the largest keys log(u)/w are a weighted draw without replacement.
    keys = np.log(1.0 - np.random.default_rng(seed).random(n_lines)) / weight
    keys[sampled] = np.inf
    sampled[np.argsort(-keys, kind="stable")[:n_sampled]] = True
    return _mask(sampled, "cartesian", seed)


def random_mask(n_lines: int, acceleration: float, center: float = 0.08, seed: int = 0) -> Mask:
    """Sample each line outside the centre independently, as fastMRI's random masks do.

    The expected number of lines is ``n_lines / acceleration``.

    Examples
    --------
    >>> random_mask(320, 4, seed=3).n_center >= 26
    True
    """
    n_center = _check_acceleration(n_lines, acceleration, center)
    sampled = _low_frequencies(n_lines, center)
    if n_center < n_lines:
        probability = (n_lines / acceleration - n_center) / (n_lines - n_center)
        sampled |= np.random.default_rng(seed).random(n_lines) < probability
    return _mask(sampled, "random", seed)


def equispaced_mask(n_lines: int, acceleration: float, center: float = 0.08, seed: int = 0) -> Mask:
    """Sample the centre and equally spaced lines from a random offset, as fastMRI's equispaced masks do.

    The spacing is widened so that, with the centre lines counted, ``n_lines / acceleration`` lines result.

    Examples
    --------
    >>> mask = equispaced_mask(320, 4, seed=0)
    >>> abs(mask.acceleration - 4) < 0.2
    True
    """
    n_center = _check_acceleration(n_lines, acceleration, center)
    sampled = _low_frequencies(n_lines, center)
    n_others = n_lines / acceleration - n_center
    if n_others > 0 and n_center < n_lines:
        spacing = (n_lines - n_center) / n_others
        offset = int(np.random.default_rng(seed).random() * round(spacing))
        sampled[np.round(np.arange(offset, n_lines - 1, spacing)).astype(int)] = True
    return _mask(sampled, "equispaced", seed)


def load_mask(path: str | Path) -> Mask:
    """Read a mask from JSON, text (0 and 1), ``.npy``, ``.npz`` or HDF5 (dataset ``mask``).

    A two-dimensional mask is accepted when it is made of whole lines.
    """
    path, advice = Path(path), "expected JSON of Mask.save, a text of 0 and 1, a .npy or .npz array, or HDF5 with mask"
    with reading(path, "a mask", advice):
        array = _read_mask_array(path)
    if isinstance(array, Mask):
        return array
    return mask_from_array(array, where=path.name)


def mask_from_array(array: NDArray[np.generic], where: str = "the array", kind: str = "file") -> Mask:
    """Make a mask of an array of 0 and 1: one entry per line, or two-dimensional with whole lines."""
    values = np.squeeze(np.asarray(array))
    if values.dtype == object or not np.isin(values, (0, 1)).all():
        raise UldaError(f"the mask in {where} holds values other than 0 and 1")
    values = values.astype(bool)
    if values.ndim == 2:
        if (values == values[:, :1]).all():
            values = values[:, 0]
        elif (values == values[:1, :]).all():
            values = values[0]
        else:
            raise UldaError(f"the mask in {where} is not made of whole lines; only Cartesian line masks are supported")
    if values.ndim != 1 or not 1 <= values.size <= MOST_LINES:
        raise UldaError(f"the mask in {where} has shape {np.shape(array)}; expected one entry per line")
    return _mask(values, kind, None)


def _read_mask_array(path: Path) -> Mask | NDArray[np.generic]:
    with regular_file(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(NPY_MAGIC):
        return _bounded(map_npy(path))
    if head.startswith(ZIP_MAGICS):
        return _read_npz(path)
    if is_hdf5(path, head):
        with open_hdf5(path, "a mask") as hdf5:
            return _bounded(hdf5["mask"])
    text = read_text(path, "a mask", MOST_TEXT)
    if text.lstrip().startswith("{"):
        return Mask.from_dict(parse_json(text, path.name))
    return np.array([int(token) for token in text.split()])


def _read_npz(path: Path) -> NDArray[np.generic]:
    with open_npz(path, "a mask") as archive:
        arrays = members(archive)
        names: list[str] = [name for name in ("mask", "lines") if name in arrays] or list(arrays)
        if len(names) != 1:
            raise ValueError(f"it holds the arrays {', '.join(names)} and none is called mask")
        member = read_member_header(path, archive, arrays[names[0]])
        _check_size(math.prod(member.shape))
        return read_member(path, archive, member)


def _bounded(array: Any) -> NDArray[np.generic]:
    _check_size(int(array.size))
    return np.asarray(array)


def _check_size(n_values: int) -> None:
    if n_values > MOST_LINES**2:
        raise ValueError(f"it holds {n_values} values, more than any mask has")


def _check_lines(n_lines: int) -> None:
    if n_lines < 1:
        raise UldaError(f"a mask needs at least one line, but {n_lines} were asked for")


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1 or math.isnan(value):
        raise UldaError(f"{name} must lie in [0, 1], but it is {value:g}")


def _check_acceleration(n_lines: int, acceleration: float, center: float) -> int:
    _check_lines(n_lines)
    _check_fraction("center", center)
    if not 1 <= acceleration < math.inf:
        raise UldaError(f"the acceleration must be at least 1, but it is {acceleration:g}")
    n_center = round(center * n_lines)
    if n_lines / acceleration < n_center:
        raise UldaError(
            f"an acceleration of {acceleration:g} leaves {n_lines / acceleration:.1f} of {n_lines} lines, fewer than "
            f"the {n_center} centre lines; lower the acceleration or the centre fraction"
        )
    return n_center


def _low_frequencies(n_lines: int, center: float) -> NDArray[np.bool_]:
    n_center = round(center * n_lines)
    start = (n_lines - n_center + 1) // 2
    sampled = np.zeros(n_lines, dtype=bool)
    sampled[start : start + n_center] = True
    return sampled


def _mask(sampled: NDArray[np.bool_], kind: str, seed: int | None) -> Mask:
    return Mask(tuple(sampled.tolist()), kind=kind, seed=seed)
