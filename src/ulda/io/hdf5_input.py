"""HDF5 files of others: opened only if all that is read lies in the file itself and fits into it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulda.errors import UldaError
from ulda.io.untrusted import (
    DAMAGED,
    HARMLESS_BYTES,
    check_expansion,
    check_memory,
    reading,
    regular_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"

MATLAB_SIGNATURE = b"MATLAB 7.3"

KNOWN_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""Those that come with HDF5 and h5py; any other would load code from elsewhere."""

MOST_OBJECTS = 100_000

TEXTS_AT_A_TIME = 256


def is_hdf5(path: Path, head: bytes) -> bool:
    """Tell whether the HDF5 signature stands at byte 0, 512, 1024, ... as the format allows."""
    if not path.is_file() or not head:
        return False
    if head.startswith(SIGNATURE) or head[512:520] == SIGNATURE:
        return True
    offset, size = 1024, path.stat().st_size
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            offset *= 2
    return False


@contextmanager
def open_hdf5(path: str | Path, what: str = "HDF5", advice: str = DAMAGED) -> Iterator[h5py.File]:
    """Open a file read-only; failures inside the block become `UldaError`.

    Refused, wherever they are in the file: external storage, links to other files, virtual datasets, filters that HDF5
    would have to load, and arrays that claim more than their stored bytes can hold.

    Parameters
    ----------
    path
        The file.
    what, advice
        What it is read as, and what to do if that fails.
    """
    import h5py

    path = regular_file(path)
    with reading(path, what, advice), h5py.File(path, "r") as file:
        _check_objects(path, file)
        yield file


@contextmanager
def peek_hdf5(path: Path, head: bytes) -> Iterator[h5py.File | None]:
    """Open a file to look at its keys; yields None when it is not HDF5, is damaged or refused."""
    with ExitStack() as stack:
        file = None
        if is_hdf5(path, head):
            with suppress(UldaError):
                file = stack.enter_context(open_hdf5(path))
        yield file


def text(value: object) -> str:
    """Text of an HDF5 attribute, stored as str, bytes or a one-element array."""
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def texts(dataset: h5py.Dataset) -> list[str]:
    """Read a column of texts; many entries may claim the same long text, so not all of them at once."""
    if dataset.ndim != 1 or dataset.dtype.kind not in "SO":
        raise ValueError(f"{dataset.name} holds no texts but {dataset.dtype} of shape {dataset.shape}")
    found: list[str] = []
    n_characters = 0
    for first in range(0, len(dataset), TEXTS_AT_A_TIME):
        block = [value.decode() for value in dataset[first : first + TEXTS_AT_A_TIME].tolist()]
        n_characters += sum(map(len, block))
        if n_characters > HARMLESS_BYTES:
            raise ValueError(f"{dataset.name} holds more than {HARMLESS_BYTES} characters")
        found += block
    return found


def attributes(item: h5py.HLObject) -> dict[str, str]:
    """Return the attributes that are single values, as text."""
    single = (name for name in item.attrs if item.attrs.get_id(name).shape in ((), (1,)))
    return {name: text(item.attrs[name]) for name in single}


def _check_objects(path: Path, file: h5py.File) -> None:
    """Look at every object that can be reached; without recursion, as groups may be nested to any depth."""
    from h5py import h5g, h5l, h5o

    seen: set[int] = set()
    waiting: list[Any] = [file.id]
    while waiting:
        group = waiting.pop()
        links: list[tuple[bytes, int]] = []
        group.links.iterate(lambda name, info, links=links: links.append((name, info.type)), info=True)
        for name, kind in links:
            if kind == h5l.TYPE_SOFT:
                continue  # names a place in this file, where no link leads elsewhere
            if kind != h5l.TYPE_HARD:
                raise UldaError(
                    f"{path} is refused: its entry {name.decode(errors='replace')} is a link to another file; give a "
                    "file that holds its data itself"
                )
            item = h5o.open(group, name)
            address = h5o.get_info(item).addr
            if address in seen:
                continue
            seen.add(address)
            if len(seen) > MOST_OBJECTS:
                raise UldaError(f"{path} is refused: it holds more than {MOST_OBJECTS} groups and arrays")
            if isinstance(item, h5g.GroupID):
                waiting.append(item)
            elif hasattr(item, "get_create_plist"):
                _check_dataset(path, name.decode(errors="replace"), item)


def _check_dataset(path: Path, name: str, dataset: Any) -> None:
    """Refuse an array whose bytes are elsewhere, or fewer than it claims."""
    from h5py import h5d

    plan = dataset.get_create_plist()
    layout = plan.get_layout()
    problem = ""
    if layout == h5d.VIRTUAL:
        problem = "is put together of other files"
    elif layout != h5d.COMPACT and plan.get_external_count():
        problem = "lies in other files"
    else:
        unknown = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())} - set(KNOWN_FILTERS)
        if unknown:
            problem = f"is packed with the filter {min(unknown)}, which is no part of HDF5"
    if problem:
        raise UldaError(f"{path} is refused: its array {name} {problem}; give a file that holds its data itself")
    n_items = dataset.get_space().get_simple_extent_npoints()
    size = dataset.get_type().get_size()
    stored = dataset.get_storage_size()
    check_expansion(path, f"its array {name}", n_items * size, stored)
    if layout == h5d.CHUNKED:
        chunk = size
        for side in plan.get_chunk():
            chunk *= side
        check_expansion(path, f"a chunk of its array {name}", chunk, stored)
        check_memory(path, f"a chunk of the array {name}", chunk)
