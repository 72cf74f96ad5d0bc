"""One small valid file of every format, written by the library of that format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import nibabel as untyped_nibabel
import numpy as np
from PIL import Image
from scipy import io

from tests.data.readers.test_dicom import dataset
from tests.data.readers.test_matlab import write_73
from tests.data.readers.test_mrd import Scan
from ulda.data import Header, Record
from ulda.data.domain_writer import DomainWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

nibabel: Any = untyped_nibabel

SIDE = 16

MAIN_ARRAY = {"fastmri.h5": "kspace", "domain.h5": "slices", "v73.mat": "kspace", "mrd.h5": "dataset/data"}
"""The files that are HDF5, and the array in them that is read."""


def kspace(*shape: int) -> NDArray[np.complex64]:
    """Return k-space of noise with its energy in the centre."""
    rng = np.random.default_rng(0)
    found = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    found[..., SIDE // 2, SIDE // 2] += 100
    return found.astype(np.complex64)


def magnitudes(*shape: int) -> NDArray[np.float32]:
    """Return positive noise."""
    return np.random.default_rng(1).random(shape).astype(np.float32)


def write_small_files(folder: Path) -> dict[str, Path]:
    """Write one file of each kind and return their paths by name."""
    with h5py.File(folder / "fastmri.h5", "w") as file:
        file["kspace"] = kspace(2, 3, SIDE, SIDE)
        file["reconstruction_rss"] = magnitudes(2, SIDE, SIDE)
        file.attrs["acquisition"] = "AXT2"
    with DomainWriter(folder / "domain.h5", Header("knee", "kspace", "measured")) as writer:
        for plane in kspace(2, SIDE, SIDE):
            writer.append(Record(plane, "one", source="a.npy"))
    write_73(folder / "v73.mat", {"kspace": kspace(2, SIDE, SIDE).astype(np.complex128)}, {})
    scan = Scan(folder / "mrd.h5", (1, SIDE, SIDE))
    for step in range(SIDE):
        scan.line(kspace(2, SIDE, SIDE)[:, step], step)
    scan.close()
    io.savemat(folder / "v5.mat", {"images": magnitudes(2, SIDE, SIDE)}, do_compression=True)
    for name in ("head.nii", "head.nii.gz"):
        nibabel.Nifti1Image(magnitudes(SIDE, SIDE, 3), np.eye(4)).to_filename(folder / name)
    dataset(folder / "series.dcm", (1000 * magnitudes(2, SIDE, SIDE)).astype(np.uint16)).save_as(folder / "series.dcm")
    np.save(folder / "array.npy", kspace(2, SIDE, SIDE))
    np.savez_compressed(folder / "arrays.npz", images=magnitudes(2, SIDE, SIDE), subject=np.array(["a", "b"]))
    pages = [Image.fromarray((255 * page).astype(np.uint8)) for page in magnitudes(2, SIDE, SIDE)]
    for name in ("page.png", "page.jpg"):
        pages[0].save(folder / name)
    pages[0].save(folder / "pages.tif", save_all=True, append_images=pages[1:])
    (folder / "scan.hdr").write_text(f"# Dimensions\n{SIDE} {SIDE} 1 2 1 1 1 1 1 1 1 1 1 1 1 1\n")
    kspace(2, SIDE, SIDE).tofile(folder / "scan.cfl")
    return {path.name: path for path in sorted(folder.iterdir()) if path.suffix != ".hdr"}


def outsource(path: Path, name: str) -> None:
    """Move an array of an HDF5 file into another file and leave a link to it."""
    with h5py.File(path, "r+") as file, h5py.File(path.with_name("elsewhere.bin"), "w") as other:
        file.copy(name, other, "data")
        del file[name]
        file[name] = h5py.ExternalLink("elsewhere.bin", "/data")


def store_externally(path: Path, name: str, source: Path) -> None:
    """Let an array of an HDF5 file take its bytes from any file."""
    with h5py.File(path, "r+") as file:
        shape, dtype = file[name].shape, file[name].dtype
        attributes = dict(file[name].attrs)
        size = int(np.prod(shape)) * dtype.itemsize
        del file[name]
        file.create_dataset(name, shape, dtype, external=[(str(source), 0, size)])
        file[name].attrs.update(attributes)
