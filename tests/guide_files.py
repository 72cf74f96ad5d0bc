"""Small files under the names that the pages of the guide use: one of every format, and those of an own project."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import io

from tests.data.readers import test_bart as bart
from tests.data.readers import test_dicom as dicom
from tests.data.readers import test_fastmri as fastmri
from tests.data.readers import test_mrd as mrd
from tests.data.readers import test_nifti as nifti
from tests.experiments.report_examples import add_run, experiment_folder
from ulda.data import DomainWriter, Header, Record, demo
from ulda.experiments.runs import Run
from ulda.methods import ULDA
from ulda.physics import fft2c, random_mask

ROOT = Path(__file__).parents[1]
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


def write_own_files(folder: Path, *, scan_is_whole: bool) -> None:
    """Write data, a tiny base in the place of the bundled one, an adapter, a configuration and results."""
    model = ULDA(sources=["brain"], width=2, depth=1, phases=2, steps_per_phase=1)
    model.save(folder / "bundled" / "base")
    model.add_domain("knee")
    images = [image[40:72, 40:72].numpy() for image in demo("knee").take(range(4, 20)).images()]
    with DomainWriter(folder / "knee.h5", Header("knee", "complex")) as writer:
        for number, image in enumerate(images):
            split = "train" if number < 10 else "val" if number < 13 else "test"
            writer.append(Record(image, f"subject {number}", split=split))
    model.save_adapter("knee", folder / "knee-adapter")
    whole = np.abs(np.stack(images[:3])).astype(np.float32)
    nifti.write(folder / "knee.nii", whole.transpose(1, 2, 0), (1, 1, 3))
    mask = np.ones(SIDE, bool) if scan_is_whole else random_mask(SIDE, 2.5, center=0.125).lines.numpy()
    kspace = fft2c(torch.from_numpy(whole).to(torch.complex64)).numpy() * mask
    fastmri.write(folder / "scan.h5", kspace=kspace, **({} if scan_is_whole else {"mask": mask}))
    (folder / "my.yaml").write_text(
        "name: my\ndata: [{name: knee, file: knee.h5}]\n"
        "network: {width: 2, depth: 1, phases: 2}\ntrain: {steps: 2, phases: [1, 2]}\n"
    )
    results = experiment_folder(folder / "runs" / "cross-anatomy-bench")
    add_run(results, Run("adapt", "ulda", "knee", 5), 9, "knee")
    packed = Path("benchmarks", "results", "experiments", "cross-anatomy.json")
    (folder / packed).parent.mkdir(parents=True)
    shutil.copy(ROOT / packed, folder / packed)


def _write_mrd(path: Path, kspace: NDArray[np.complex64]) -> None:
    scan = mrd.Scan(path, (1, *kspace.shape))
    for step, line in enumerate(kspace):
        scan.line(line[None], step)
    scan.close()
