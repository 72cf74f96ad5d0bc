"""Peak memory of importing and iterating, for N and for 10 N slices of several formats.

Run: ``python -m benchmarks.streaming``. Each measurement is a fresh process; the ratio of the two peaks is what
counts. It must stay below 1.2.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import nibabel
import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
SIDE = 256


def noise(n_slices: int) -> Iterator[NDArray[np.uint16]]:
    """Draw uint16 images one by one."""
    generator = np.random.default_rng(0)
    for _ in range(n_slices):
        yield generator.integers(0, 4096, (SIDE, SIDE), dtype=np.uint16)


def write_npz(path: Path, n_slices: int) -> None:
    """Write an archive as NumPy does: compressed, slice after slice."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<u2", "fortran_order": False, "shape": (n_slices, SIDE, SIDE)}
            np.lib.format.write_array_header_1_0(stream, header)
            for image in noise(n_slices):
                stream.write(image.tobytes())
        with archive.open("subject.npy", "w") as stream:
            np.save(stream, np.array([f"subject-{i // 10}" for i in range(n_slices)]))


def write_fastmri(path: Path, n_slices: int) -> None:
    """Write single-coil k-space with its target."""
    with h5py.File(path, "w") as file:
        kspace = file.create_dataset("kspace", (n_slices, SIDE, SIDE), np.complex64)
        target = file.create_dataset("reconstruction_esc", (n_slices, SIDE, SIDE), np.float32)
        for i, image in enumerate(noise(n_slices)):
            kspace[i] = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image), norm="ortho"))
            target[i] = image


def write_nifti(path: Path, n_slices: int) -> None:
    """Write one volume, which lies on the disk slice after slice."""
    header: Any = nibabel.Nifti1Header()  # type: ignore[no-untyped-call]
    header.set_data_dtype(np.uint16)
    header.set_data_shape((SIDE, SIDE, n_slices))
    header.set_zooms((1, 1, 3))
    header["magic"], header["vox_offset"] = b"n+1", 352
    with path.open("wb") as stream:
        stream.write(header.binaryblock + bytes(4))
        for image in noise(n_slices):
            stream.write(image.tobytes())


def write_dicom(path: Path, n_slices: int) -> None:
    """Write a series as a folder, one file for each slice."""
    path.mkdir()
    series = generate_uid()
    for i, image in enumerate(noise(n_slices)):
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = MRImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = generate_uid()
        data.SeriesInstanceUID, data.PatientID = series, "nobody"
        data.Rows = data.Columns = SIDE
        data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
        data.ImageOrientationPatient, data.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 3 * i]
        data.PixelData = image.tobytes()
        data.save_as(path / f"{i}.dcm", enforce_file_format=True)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "slices.npz": write_npz,
    "fastmri.h5": write_fastmri,
    "volume.nii": write_nifti,
    "dicom": write_dicom,
}


def measure(source: Path, out: Path) -> None:
    """Import `source`, iterate over the result, and print the peak memory in MiB."""
    import torch

    from ulda.data import Domain, ImportOptions, import_domain

    torch.set_num_threads(1)
    import_domain([source], out, ImportOptions(size=(128, 128), normalisation="volume"))
    for image in Domain.open(out).images():
        assert image.shape == (128, 128)
    print(own_peak())


def own_peak() -> float:
    """Return the peak memory of this process in MiB.

    Linux hands ``ru_maxrss`` on to a child, which would hide a small process behind a large parent; so the
    high-water mark of the process' own memory is read where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def peak_memory(name: str, n_slices: int) -> float:
    """Return the peak memory in MiB of a fresh process that imports `n_slices` slices of a format."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / name, Path(folder) / "out.h5"
        WRITERS[name](source, n_slices)
        return _run(source, out)


def _run(source: Path, out: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.streaming", str(source), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(done.stdout)


def peaks(name: str, n_slices: int) -> tuple[float, float]:
    """Return the peaks for `n_slices` slices and for ten times as many."""
    return peak_memory(name, n_slices), peak_memory(name, 10 * n_slices)


def main() -> None:
    """Print the table."""
    n_slices = 200
    print(f"peak memory in MiB; the ratio must be below 1.2\n{'source':12} {n_slices:>8} {10 * n_slices:>8}    ratio")
    for name in WRITERS:
        small, large = peaks(name, n_slices)
        print(f"{name:12} {small:8.0f} {large:8.0f} {large / small:8.3f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
