"""NIfTI files of others, plain or gzipped, through nibabel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ulda.errors import MissingExtraError, UldaError
from ulda.io.compressed import GZIP_MAGIC, gunzip_head
from ulda.io.untrusted import HARMLESS_BYTES, check_expansion, regular_file

HEADER_BYTES = 348

HEAD_BYTES = 1024


def is_nifti(head: bytes) -> bool:
    """Tell by the magic of the (decompressed) header."""
    if head.startswith(GZIP_MAGIC):
        head = gunzip_head(head, HEADER_BYTES)
    return head[344:348] == b"n+1\0" or head[4:8] == b"n+2\0"


def nibabel() -> Any:
    """Return the library, or say that it is missing."""
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtraError("reading and writing NIfTI", "nifti") from error
    return nibabel


def load_nifti(path: str | Path) -> Any:
    """Read the header, and refuse one that announces more than the file can hold; call it inside `reading`."""
    library, path = nibabel(), regular_file(path)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_nifti(head):
        raise UldaError(f"{path} cannot be read as NIfTI: its header lacks the magic; give another file")
    _check_offset(library, path, head)
    # Kept open, a gzip stream continues where the previous slice ended instead of starting over.
    image = library.load(path, keep_file_open=True)
    shape, dtype = tuple(int(size) for size in image.shape), image.get_data_dtype()
    if any(size < 0 for size in shape):
        raise UldaError(f"{path} announces the impossible shape {shape}; copy or save the file again")
    n_bytes, stored = math.prod(shape) * dtype.itemsize, path.stat().st_size
    if head.startswith(GZIP_MAGIC):
        in_memory = math.prod(shape) * max(4, dtype.itemsize)
        check_expansion(path, f"its image of shape {shape}", in_memory, stored)
    elif int(image.dataobj.offset) + n_bytes > stored:
        raise UldaError(
            f"{path} is truncated or damaged: its header announces {dtype} {shape} from byte "
            f"{int(image.dataobj.offset)} on, but the file has {stored} bytes; copy or download it again"
        )
    return image


def _check_offset(library: Any, path: Path, head: bytes) -> None:
    """Refuse extensions of the header that are larger than any image needs, as they are read with it."""
    if head.startswith(GZIP_MAGIC):
        head = gunzip_head(head, HEAD_BYTES)
    is_first = head[344:348] == b"n+1\0"
    kind, size = (library.Nifti1Header, 348) if is_first else (library.Nifti2Header, 540)
    if len(head) < size:
        raise UldaError(f"{path} is truncated: it ends within its header; copy or download it again")
    offset = float(kind(head[:size], check=False)["vox_offset"])
    if not 0 <= offset <= HARMLESS_BYTES:
        raise UldaError(f"{path} announces its image from byte {offset:g} on; copy or download it again")
