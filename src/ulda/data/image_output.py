"""Reconstructed images as files for other programs, and the comparison of such a file with the images it is to hold.

====================  ====================================================================================
``.npy``              complex, ``(slices, H, W)``
``.nii``, ``.nii.gz``  magnitude in float32, ``(H, W, slices)``, voxels of unknown size
``.png``              magnitude in 256 grey levels from 0 to the peak of all slices; several slices become
                      ``name-000.png``, ``name-001.png``, ...
====================  ====================================================================================
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.compressed import gunzip
from ulda.io.nifti import load_nifti, nibabel
from ulda.io.numpy_input import map_npy
from ulda.io.pictures import open_picture
from ulda.io.untrusted import check_memory, reading

SUFFIXES = (".npy", ".nii", ".nii.gz", ".png")

NIFTI = (".nii", ".nii.gz")

WHITE = 255


def image_suffix(path: Path) -> str:
    """Return which of `SUFFIXES` a path ends with, in lower case; empty for another."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def image_files(path: Path, n_slices: int) -> list[Path]:
    """Return the files that `save_images` writes."""
    if image_suffix(path) != ".png" or n_slices == 1:
        return [path]
    digits = max(3, len(str(n_slices - 1)))
    return [path.with_name(f"{path.stem}-{i:0{digits}}{path.suffix}") for i in range(n_slices)]


def save_images(
    path: str | Path,
    images: NDArray[np.complexfloating[Any, Any]],
    *,
    affine: NDArray[np.float64] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write complex images ``(slices, H, W)`` in the format that the suffix names.

    Returns what a manifest says of them, for `altered`: the ``format``, the SHA-256 of each file, and of NIfTI the
    ``affine``.

    Parameters
    ----------
    path
        The file to write; its suffix is one of `SUFFIXES`.
    images
        The images.
    affine
        The map from row, column and number of a slice to millimetres, which only NIfTI keeps; None for the identity.
    overwrite
        Replace existing files.
    """
    path, suffix = Path(path), image_suffix(Path(path))
    if not suffix:
        raise UldaError(f"images cannot be written to {path.name}; the suffix must be one of {', '.join(SUFFIXES)}")
    if suffix not in NIFTI:
        affine = None
    elif affine is None:
        affine = np.eye(4)
    elif not np.isfinite(affine).all():
        raise UldaError(f"the place of the slices is not finite, so it cannot be written to {path.name}")
    contents = _encode(suffix, images, affine)
    for file, content in zip(image_files(path, len(images)), contents, strict=True):
        with atomic_output(file, overwrite=overwrite) as temporary:
            temporary.write_bytes(content)
    return {
        "format": suffix,
        "affine": None if affine is None else affine.tolist(),
        "sha256": [hashlib.sha256(content).hexdigest() for content in contents],
    }


def altered(path: str | Path, images: NDArray[np.complexfloating[Any, Any]], record: Any) -> str:
    """Say in one sentence how image files differ from those that were written; empty if they do not.

    Parameters
    ----------
    path
        The images, as given to `save_images`.
    images
        What they are to hold ``(slices, H, W)``.
    record
        What `save_images` returned, possibly from a file.
    """
    path = Path(path)
    try:
        with reading(path.name, "what the manifest describes", "it is not what was written"):
            return _alteration(path, images, record)
    except UldaError as error:
        return str(error)


def _alteration(path: Path, images: NDArray[np.complexfloating[Any, Any]], record: Any) -> str:
    suffix = image_suffix(path)
    if set(record) != {"format", "affine", "sha256"} or record["format"] != suffix:
        return f"the manifest does not cover images of the format {suffix}"
    problem = difference(path, images)
    if problem:
        return problem
    files = image_files(path, len(images))
    contents = [file.read_bytes() for file in files]
    affine = np.array(record["affine"], np.float64) if suffix in NIFTI else record["affine"]
    for file, content, expected in zip(files, contents, _encode(suffix, images, affine), strict=True):
        found = _header(content, suffix)
        for name, value in _header(expected, suffix).items():
            if found.get(name) != value:
                return f"the header of {file.name} says {name} {found.get(name)}, but it was written with {value}"
    if affine is not None and suffix not in NIFTI:
        return f"the manifest speaks of an affine, which {suffix} has not"
    for file, content, sha in zip(files, contents, record["sha256"], strict=True):
        if hashlib.sha256(content).hexdigest() != sha:
            return f"{file.name} holds the pixels of the run, but is not byte for byte the file that was written"
    return ""


def difference(path: str | Path, images: NDArray[np.complexfloating[Any, Any]]) -> str:
    """Say in one sentence where a file differs from the images it is to hold; empty if it does not.

    Numbers may differ by the rounding of the format: nothing in ``.npy``, the last digit of a float32 in NIfTI, half
    a grey level in PNG.
    """
    path = Path(path)
    suffix = image_suffix(path)
    expected, tolerance = _values(images, suffix)
    stored, files = [], image_files(path, len(images))
    for file in files:
        try:
            with reading(file, f"{suffix} of the run", "it is not what was written"):
                stored.append(_decode(file, suffix))
        except UldaError as error:
            return str(error) if file.is_file() else f"{file.name} is missing"
    if any(array.shape != stored[0].shape for array in stored):
        return f"the pictures of {path.name} have different sizes"
    found = np.concatenate(stored)
    if found.shape != expected.shape or found.dtype.kind not in (expected.dtype.kind, "u"):
        return f"{path.name} holds {found.dtype} of shape {found.shape}, the run images of shape {expected.shape}"
    wrong = np.argwhere(~(np.abs(found - expected) <= tolerance))
    if len(wrong) == 0:
        return ""
    number, row, column = wrong[0]
    name = files[number].name if len(files) > 1 else path.name
    return f"{name} is not the image of the run: slice {number} differs in row {row}, column {column}"


def _values(images: NDArray[Any], suffix: str) -> tuple[NDArray[Any], Any]:
    """Return the numbers that a format is to hold, and by how much they may differ."""
    if suffix == ".npy":
        return images, 0.0
    magnitude = np.abs(images)
    if suffix == ".png":
        return magnitude * (WHITE / (float(magnitude.max()) or 1.0)), 0.501
    magnitude = magnitude.astype(np.float32)
    return magnitude, 1e-6 * magnitude


def _encode(suffix: str, images: NDArray[Any], affine: NDArray[np.float64] | None) -> list[bytes]:
    values, _ = _values(images, suffix)
    if suffix == ".png":
        return [_png(np.round(page).astype(np.uint8)) for page in values]
    if suffix == ".npy":
        stream = io.BytesIO()
        np.save(stream, values, allow_pickle=False)
        return [stream.getvalue()]
    content = nibabel().Nifti1Image(np.moveaxis(values, 0, -1), affine).to_bytes()
    return [gzip.compress(content, mtime=0) if suffix == ".nii.gz" else content]


def _decode(file: Path, suffix: str) -> NDArray[Any]:
    """Read a file as ``(slices, H, W)``."""
    if suffix == ".npy":
        return np.asarray(map_npy(file))
    if suffix == ".png":
        with open_picture(file, "a picture") as picture:
            return np.asarray(picture)[None]
    image = load_nifti(file)
    check_memory(file, "the image", 8 * math.prod(image.shape))
    return np.moveaxis(np.asarray(image.dataobj), -1, 0)


def _header(content: bytes, suffix: str) -> dict[str, str]:
    """Return what a file says beside its pixels: type, size, place and units."""
    if suffix == ".npy":
        stream = io.BytesIO(content)
        version = np.lib.format.read_magic(stream)
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        return {"version": str(version), "shape": str(shape), "fortran_order": str(in_columns), "type": dtype.str}
    if suffix == ".png":
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            return {"mode": picture.mode, "size": str(picture.size), "extras": str(picture.info)}
    image = nibabel().Nifti1Image.from_bytes(gunzip(content) if suffix == ".nii.gz" else content)
    header = {name: str(image.header[name].tolist()) for name in image.header}
    return header | {"extensions": str([one.get_content() for one in image.header.extensions])}


def _png(page: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(page).save(stream, format="PNG")
    return stream.getvalue()
