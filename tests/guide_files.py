"""A small file of every format, under the names that docs/data.md uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import io

from tests.data.readers import test_bart as bart
from tests.data.readers import test_dicom as dicom
from tests.data.readers import test_fastmri as fastmri
from tests.data.readers import test_mrd as mrd
from tests.data.readers import test_nifti as nifti

SIDE = 32


def write_files(folder: Path) -> None:
    """Write the files of all examples, each of a few slices with random values."""
    images = np.random.default_rng(0).uniform(0.1, 1, (4, SIDE, SIDE)).astype(np.float32)
    kspace = fastmri.kspace_of(4, SIDE, SIDE)
    for name in ("scans", "singlecoil_train", "series", "pictures"):
        (folder / name).mkdir()
    for number in range(5):
        nifti.write(folder / "scans" / f"sub-0{number}_T1w.nii", images.transpose(1, 2, 0), (1, 1, 3))
    for number in (1, 2):
        fastmri.write(folder / "singlecoil_train" / f"file{number}.h5", kspace=kspace)
        nifti.write(folder / f"sub-0{number}_T1w.nii.gz", images.transpose(1, 2, 0), (1, 1, 3))
        _write_mrd(folder / f"meas_0{number}.h5", kspace[0])
    for number, image in enumerate(images):
        pixels = (image * 1000).astype(np.uint16)
        path = folder / "series" / f"{number}.dcm"
        position = {"ImagePositionPatient": [0, 0, number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        dicom.save(dicom.dataset(path, pixels), path, **position)
        Image.fromarray((image * 255).astype(np.uint8)).save(folder / "pictures" / f"img{number}.png")
    bart.write_cfl(folder / "kspace", kspace[0])
    io.savemat(folder / "scan.mat", {"kspace": kspace})
    np.save(folder / "images.npy", images)
    np.savez(folder / "scans.npz", images=images, subject=["a", "a", "b", "b"])


def _write_mrd(path: Path, kspace: NDArray[np.complex64]) -> None:
    scan = mrd.Scan(path, (1, *kspace.shape))
    for step, line in enumerate(kspace):
        scan.line(line[None], step)
    scan.close()
