"""SHA-256 of every part of an HDF5 file: each attribute, each array, each group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

import h5py
import numpy as np

from ulda.errors import UldaError

BLOCK = 16 * 2**20
"""How many bytes of an array are read at a time."""


def fingerprint_parts(file: h5py.File, *, without: Collection[str] = (), most: float = float("inf")) -> dict[str, str]:
    """Return the SHA-256 of each part of an open file.

    Parameters
    ----------
    file
        The file.
    without
        Attributes of the whole file to leave out.
    most
        The largest number of bytes that an array may claim to have.

    Returns
    -------
    dict
        For each attribute ``path@name`` its value, for each array ``path`` its type, shape and bytes; groups, too,
        since their names say something. Links to elsewhere are no parts.
    """
    found = {f"@{name}": sha for name, sha in _attributes(file) if name not in without}

    def add(path: str, item: h5py.Group | h5py.Dataset | h5py.Datatype) -> None:
        if isinstance(item, h5py.Dataset) and item.nbytes > most:
            raise UldaError(f"its array {path} claims {item.nbytes} bytes, more than the whole file")
        found[path] = _array(path, item) if isinstance(item, h5py.Dataset) else type(item).__name__.lower()
        found.update((f"{path}@{name}", sha) for name, sha in _attributes(item))

    file.visititems(add)
    return found


def _attributes(item: h5py.HLObject) -> Iterator[tuple[str, str]]:
    for name, value in item.attrs.items():
        array = np.asarray(value)
        # text and lists of text have no bytes of their own
        # bytes, and what else JSON does not know, as Python writes it
        text = json.dumps(array.tolist(), default=repr) if array.dtype.kind in "OUS" else ""
        sha = hashlib.sha256(f"{'text' if text else array.dtype.str}|{array.shape}|{text}".encode())
        sha.update(b"" if text else array.tobytes())
        yield name, sha.hexdigest()


def _array(path: str, dataset: h5py.Dataset) -> str:
    if dataset.dtype.hasobject:
        raise UldaError(f"its array {path} holds no numbers")
    sha = hashlib.sha256(f"{dataset.dtype.str}|{dataset.shape}|".encode())
    for block in _blocks(dataset):
        sha.update(np.ascontiguousarray(block).tobytes())
    return sha.hexdigest()


def _blocks(dataset: h5py.Dataset) -> Iterator[Any]:
    """Yield the rows of an array, a few at a time."""
    if not dataset.shape or dataset.nbytes <= BLOCK:
        yield np.asarray(dataset[()])
        return
    step = max(1, BLOCK * len(dataset) // max(dataset.nbytes, 1))
    for first in range(0, len(dataset), step):
        yield dataset[first : first + step]
