"""Valid files of all kinds that the package reads, written by the real libraries, and the commands that read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import io

from tests.data.readers import test_bart as bart
from tests.data.readers import test_dicom as dicom
from tests.data.readers import test_fastmri as fastmri
from tests.data.readers import test_matlab as matlab
from tests.data.readers import test_mrd as mrd
from tests.data.readers import test_nifti as nifti
from tests.evaluation import report_examples as comparisons
from tests.experiments import report_examples as experiments
from ulda.data import DomainWriter, Header, Record
from ulda.data.measurements import Undersampling
from ulda.evaluation.report import save_comparison
from ulda.experiments import load_experiment
from ulda.experiments.runs import runs_of
from ulda.methods import ULDA, new_method
from ulda.methods import runs as training
from ulda.methods.registry import load_method
from ulda.physics import cartesian_mask, fft2c
from ulda.reconstruction import load, reconstruct_file
from ulda.solvers.signatures import new_key, sign_output
from ulda.training.config import load_config

SIDE = 16

Command = list[str] | Callable[[], Any]


@dataclass(frozen=True)
class Seed:
    """A kind of file.

    Attributes
    ----------
    kind
        Its name in the table.
    files
        Their bytes, by path.
    mutated
        Those of the paths that are mutated; the others only serve the commands.
    commands
        What reads them, from the folder where they are; what is written goes to ``../out``.
    """

    kind: str
    files: dict[str, bytes]
    mutated: tuple[str, ...]
    commands: tuple[Command, ...]


INSPECT, IMPORT = ["data", "inspect"], ["data", "import", "--out", "../out/made.h5"]
RECONSTRUCT = ["reconstruct", "--out", "../out/made.npy", "--model", "model", "--iterations", "1"]
SPLIT = ["data", "split", "--out", "../out/made.h5"]
REPORT = ["report", "--out", "../out/made.html"]


def make_seeds(folder: Path) -> list[Seed]:
    """Write all files into a folder and read their bytes."""
    generator = np.random.default_rng(0)
    images = generator.uniform(0.1, 1, (2, SIDE, SIDE)).astype(np.float32)
    made = [*_kspace(folder, images), *_pictures(folder, images), *_own_data(folder, images)]
    made += [*_models(folder), *_trainings(folder), *_outputs(folder, images), *_results(folder)]
    return made


def _seed(folder: Path, kind: str, names: str, *commands: Command, beside: str = "") -> Seed:
    """Make a seed of what is in a folder under some names; `beside` names what serves its commands."""
    files, mutated = {}, []
    for name in (*names.split(), *beside.split()):
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                relative = str(file.relative_to(folder))
                files[relative] = file.read_bytes()
                mutated += [relative] if name in names.split() else []
    return Seed(kind, files, tuple(mutated), commands)


def _read(folder: Path, kind: str, name: str, *options: str, beside: str = "") -> Seed:
    """Make a seed of data that can be inspected, imported and reconstructed."""
    place = name.split()[0]
    reconstruct = [*RECONSTRUCT, place, *(options or ("--ratio", "0.5"))]
    commands = [*INSPECT, place], [*IMPORT, place], [word for word in reconstruct if word != "--as-it-is"]
    return _seed(folder, kind, name, *commands, beside=f"model {beside}")


def _kspace(folder: Path, images: Any) -> Iterator[Seed]:
    model = ULDA(sources=["brain"], width=2, depth=1, phases=1, steps_per_phase=1)
    model.save(folder / "model")
    kspace = fft2c(torch.from_numpy(images).to(torch.complex64)).numpy()
    mask = cartesian_mask(SIDE, 0.5, seed=1).lines.numpy()
    fastmri.write(folder / "fastmri.h5", kspace=kspace)
    yield _read(folder, "fastMRI HDF5", "fastmri.h5")
    fastmri.write(folder / "few.h5", kspace=kspace[:, None].repeat(2, 1) * mask, mask=mask)
    yield _read(folder, "fastMRI HDF5, coils and mask", "few.h5", "--as-it-is")
    scan = mrd.Scan(folder / "scan.h5", (1, SIDE, SIDE))
    for step, line in enumerate(kspace[0]):
        scan.line(line[None], step)
    scan.close()
    yield _read(folder, "ISMRMRD", "scan.h5")
    bart.write_cfl(folder / "scan", kspace[0])
    yield _read(folder, "BART", "scan.cfl scan.hdr")
    io.savemat(folder / "five.mat", {"kspace": kspace, "TR": 3.0, "label": "text"})
    yield _read(folder, "MATLAB 5", "five.mat")
    io.savemat(folder / "packed.mat", {"kspace": kspace}, do_compression=True)
    yield _read(folder, "MATLAB 5, compressed", "packed.mat")
    matlab.write_73(folder / "seven.mat", {"kspace": kspace}, {"kspace": "single"})
    yield _read(folder, "MATLAB 7.3", "seven.mat")


def _pictures(folder: Path, images: Any) -> Iterator[Seed]:
    nifti.write(folder / "a.nii", images.transpose(1, 2, 0), (1, 1, 3))
    yield _read(folder, "NIfTI", "a.nii")
    nifti.write(folder / "a.nii.gz", images.transpose(1, 2, 0), (1, 1, 3))
    yield _read(folder, "NIfTI, gzip", "a.nii.gz")
    for name in ("dicom", "png", "tiff"):
        (folder / name).mkdir()
    for number, image in enumerate(images):
        path = folder / "dicom" / f"{number}.dcm"
        position = {"ImagePositionPatient": [0, 0, number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        dicom.save(dicom.dataset(path, (image * 1000).astype(np.uint16)), path, **position)
        for suffix in ("png", "tiff"):
            Image.fromarray((image * 255).astype(np.uint8)).save(folder / suffix / f"{number}.{suffix}")
    yield _read(folder, "DICOM folder", "dicom")
    frames = folder / "frames.dcm"
    dicom.save(dicom.dataset(frames, (images * 1000).astype(np.uint16)), frames)
    yield _read(folder, "DICOM, several frames", "frames.dcm")
    yield _read(folder, "PNG folder", "png")
    yield _read(folder, "TIFF folder", "tiff")
    np.save(folder / "images.npy", images)
    yield _read(folder, "npy", "images.npy")
    np.savez(folder / "scans.npz", images=images, subject=["a", "b"], split=["train", "test"])
    yield _read(folder, "npz", "scans.npz")
    np.savez_compressed(folder / "small.npz", images=images, subject=["a", "b"])
    yield _read(folder, "npz, compressed", "small.npz")


def _own_data(folder: Path, images: Any) -> Iterator[Seed]:
    with DomainWriter(folder / "knee.h5", Header("knee", "complex")) as writer:
        for number, image in enumerate(np.concatenate([images] * 3).astype(np.complex64)):
            writer.append(Record(image, f"subject {number}", split=("train", "val", "test")[number // 2]))
    seed = _read(folder, "domain file", "knee.h5")
    check = ["data", "split", "knee.h5", "--check"]
    yield replace(seed, commands=(*seed.commands, check, [*SPLIT, "knee.h5"]))
    (folder / "splits.csv").write_text("subject,split\n" + "".join(f"subject {i},train\n" for i in range(6)))
    yield _seed(folder, "table of splits", "splits.csv", [*SPLIT, "knee.h5", "--table", "splits.csv"], beside="knee.h5")
    mask = cartesian_mask(SIDE, 0.5, seed=1)
    mask.save(folder / "mask.json")
    (folder / "mask.txt").write_text(" ".join(str(int(one)) for one in mask.sampled))
    np.save(folder / "mask.npy", mask.lines.numpy())
    np.savez(folder / "mask.npz", mask=mask.lines.numpy())
    fastmri.write(folder / "mask.h5", mask=mask.lines.numpy())
    for suffix in ("json", "txt", "npy", "npz", "h5"):
        reconstruct = [*RECONSTRUCT, "fastmri.h5", "--mask", f"mask.{suffix}"]
        yield _seed(folder, f"mask, {suffix}", f"mask.{suffix}", reconstruct, beside="model fastmri.h5")


def _models(folder: Path) -> Iterator[Seed]:
    yield _seed(
        folder,
        "base folder",
        "model",
        ["models", "inspect", "model"],
        ["models", "list", "--path", "."],
        [*RECONSTRUCT, "few.h5"],
        beside="few.h5",
    )
    model = load(folder / "model")
    model.add_domain("knee")
    model.save_adapter("knee", folder / "adapter")
    yield _seed(
        folder,
        "adapter folder",
        "adapter",
        ["models", "inspect", "adapter"],
        ["models", "list", "--path", "adapter"],
        [*RECONSTRUCT, "few.h5", "--adapter", "adapter"],
        beside="model few.h5",
    )
    sizes: dict[str, dict[str, Any]] = {"unet": {"channels": 2}, "dncn": {"filters": 2, "layers": 2, "cascades": 1}}
    for name in sizes:
        new_method(name, ["brain"], **sizes[name]).save(folder / name)
        listed = ["models", "inspect", name]
        yield _seed(folder, f"model of {name}", name, listed, lambda name=name: load_method(name))  # type: ignore[misc]


def _trainings(folder: Path) -> Iterator[Seed]:
    text = (
        "name: my\nseed: 0\ndata:\n  - {name: knee, file: 'demo:knee', size: 16, slices: 2}\n"
        "masks:\n  ratios: [0.5]\n  per_ratio: 1\n"
        "network:\n  width: 2\n  depth: 1\n  phases: 2\n  steps_per_phase: 1\ntrain:\n  steps: 2\n  phases: [2]\n"
        "  batch_size: 1\n  validate_every: 0\n"
    )
    (folder / "my.yaml").write_text(text)
    config = training.resolve(load_config(folder / "my.yaml"), None, None, None)
    yield _seed(
        folder,
        "YAML of a training",
        "my.yaml",
        lambda: training.resolve(load_config("my.yaml"), None, None, None),
    )
    training.train(config, folder / "run")
    resume = ["train", "my.yaml", "--out", "run", "--resume"]
    yield _seed(folder, "run of a training: checkpoint, log, model", "run", resume, beside="my.yaml")


def _outputs(folder: Path, images: Any) -> Iterator[Seed]:
    del images
    model = load(folder / "model")
    new_key(folder / "key")
    for suffix in (".h5", ".npy", ".nii", ".nii.gz", ".png"):
        out = folder / f"output{suffix}"
        reconstruct_file(model, folder / "fastmri.h5", out, undersampling=Undersampling(0.5), iterations=1)
        commands = [["verify", out.name], [*REPORT, out.name]]
        names = [path.name for path in sorted(folder.glob("output*")) if _is_of(path, out)]
        if suffix == ".h5":
            sign_output(out, folder / "key")
            commands += [["verify", out.name, "--key", "key.pub"], [*REPORT, out.name, "--reference", "fastmri.h5"]]
        yield _seed(folder, f"output, {suffix}", " ".join(names), *commands, beside="key key.pub fastmri.h5")
    keyed = ["verify", "output.h5", "--key", "key.pub"], ["sign", "output.h5", "--key", "key"]
    yield _seed(folder, "keys", "key key.pub", *keyed, beside="output.h5")


def _is_of(path: Path, out: Path) -> bool:
    """Tell whether a file belongs to an output: its images, or its run file."""
    if out.suffix == ".h5":
        return path == out
    name = path.name.removesuffix(".run.h5")
    return name == out.name or (out.suffix == ".png" and name.endswith(".png"))


def _results(folder: Path) -> Iterator[Seed]:
    save_comparison(folder / "comparison.h5", comparisons.example())
    yield _seed(folder, "comparison file", "comparison.h5", [*REPORT, "comparison.h5"])
    experiments.experiment_folder(folder / "experiment")
    report = [*REPORT, "experiment", "--slices", "5"]
    yield _seed(folder, "runs of an experiment", "experiment", report)
    experiments.packed_file(folder / "experiment", folder / "packed.json")
    yield _seed(folder, "packed results", "packed.json", [*REPORT, "packed.json", "--slices", "5"])
    source = Path(load_experiment.__code__.co_filename).parent / "definitions" / "cross-anatomy.yaml"
    shutil.copy(source, folder / "mine.yaml")
    yield _seed(folder, "YAML of an experiment", "mine.yaml", _planned)


def _planned() -> None:
    """Do with an experiment what all its commands begin with."""
    experiment = load_experiment("mine.yaml")
    runs_of(experiment, next(iter(experiment.scales.values())))
