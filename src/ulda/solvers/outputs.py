"""What `ulda reconstruct` writes, and its verification: a run file, and images for other programs beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ulda.data.image_output import SUFFIXES, altered, image_files, image_suffix
from ulda.errors import UldaError
from ulda.io.file_set import finish
from ulda.io.temporary import check_place
from ulda.solvers.manifest import CheckedManifest
from ulda.solvers.record_reader import load_runs
from ulda.solvers.verification import Verdict

RUN_SUFFIXES = (".h5", ".hdf5")

IMAGES_RUN = ".run.h5"
"""What the name of a run file beside images has more than theirs."""


@dataclass(frozen=True)
class CheckedOutput:
    """The verdict on an output, and of what its certificates speak.

    Attributes
    ----------
    verdict
        The first run that disagrees decides where; its sample is counted over the whole output.
    samples
        What the certificates say of each slice; only where they are verified.
    n_pixels
        The number of pixels of a slice.
    digest, signature
        The SHA-256 of the manifest of the output, and its signature as it is in the file, unchecked.
    """

    verdict: Verdict
    samples: list[dict[str, Any]]
    n_pixels: int
    digest: str
    signature: str


def run_file(out: str | Path) -> Path:
    """Return where the run of an output is: in the output itself, or in the file ``OUT.run.h5`` beside images.

    Examples
    --------
    >>> run_file("knee.h5").name, run_file("knee.nii.gz").name
    ('knee.h5', 'knee.nii.gz.run.h5')
    """
    out = Path(out)
    if image_suffix(out):
        return out.with_name(f"{out.name}{IMAGES_RUN}")
    if out.suffix.lower() in RUN_SUFFIXES:
        return out
    raise UldaError(f"{out.name} ends with none of the known suffixes {', '.join((*RUN_SUFFIXES, *SUFFIXES))}")


def output_name(out: str | Path) -> Path:
    """Return what images and their run file are called together; `out` is either of them.

    Examples
    --------
    >>> output_name("knee.npy").name, output_name("knee.npy.run.h5").name
    ('knee.npy', 'knee.npy')
    """
    out = Path(out)
    return out.with_name(out.name.removesuffix(IMAGES_RUN) or out.name)


def check_places(out: str | Path, n_slices: int, *, overwrite: bool = False) -> None:
    """Refuse what cannot be written, or not be replaced, before the long work rather than after it."""
    out = Path(out)
    finish_output(out)
    for path in (run_file(out), *image_files(out, n_slices)):
        check_place(path, overwrite=overwrite)


def finish_output(out: str | Path) -> None:
    """Finish the writing of images and their run file where it was interrupted; `out` is either of them."""
    finish(output_name(out))


def verify_output(out: str | Path) -> CheckedOutput:
    """Replay all runs of an output, and compare the whole of it, images beside the run file too, with its manifest.

    Parameters
    ----------
    out
        A run file, or the path of images as it was given to `ulda reconstruct`.
    """
    path = certified_file(out)
    verdict, samples, images, n_slices, n_pixels = Verdict(True), [], [], 0, 0
    manifest = CheckedManifest(())
    for run in load_runs(path):
        manifest = run.manifest or manifest
        found = replace(run, manifest=None).verify()
        if found.ok:
            samples += run.certificate["samples"]
        else:
            verdict = _joined(verdict, found, n_slices, len(run.x))
        n_slices, n_pixels = n_slices + len(run.x), run.x.shape[-2:].numel()
        if run.image is not None:
            images.append(run.image)
    problem = _image_problem(Path(out), path, images, manifest.images)
    verdict = verdict.joined((*([problem] if problem else []), *manifest.problems))
    return CheckedOutput(verdict, samples, n_pixels, manifest.digest, manifest.signature)


def check_parts(out: str | Path) -> CheckedManifest:
    """Compare an output with its manifest as `verify_output` does, without a replay."""
    path, images, manifest = certified_file(out), [], CheckedManifest(())
    for run in load_runs(path):
        manifest = run.manifest or manifest
        if run.image is not None:
            images.append(run.image)
    problem = _image_problem(Path(out), path, images, manifest.images)
    return replace(manifest, problems=(*([problem] if problem else []), *manifest.problems))


def certified_file(out: str | Path) -> Path:
    """Return the run file of an output that exists: the output itself, or the one beside images."""
    out = Path(out)
    finish_output(out)
    path = run_file(out) if image_suffix(out) else out
    if path != out and not path.exists():
        raise UldaError(
            f"there is no run file {path.name} beside {out.name}; it holds the certificate, and "
            "of several pictures it is named after the path given to --out"
        )
    return path


def _image_problem(out: Path, path: Path, images: list[Tensor], record: Any) -> str:
    """Say where the images beside a run file are not those it was written with; empty where all is well."""
    if record is None:
        return "" if path == out else f"{path.name} does not cover {out.name}: it was written without images beside it"
    if path == out:
        out = path.with_name(path.name.removesuffix(IMAGES_RUN))
        if not image_suffix(out):
            return f"{path.name} covers images beside it, whose names cannot be told: it must be named OUT{IMAGES_RUN}"
    return altered(out, torch.cat(images).numpy(), record) if images else f"{path.name} holds no images"


def _joined(verdict: Verdict, found: Verdict, first: int, n_samples: int) -> Verdict:
    """Add what is wrong with the run that starts at slice `first`; where, is said by the first run with a place."""
    # of later runs it must be said which they are; those of the first are counted as the slices are
    where = f"run of the slices {first} to {first + n_samples - 1}: " if first else ""
    problems = (*verdict.problems, *(where + problem for problem in found.problems))
    if verdict.sample is not None or found.sample is None:
        return replace(verdict, ok=False, problems=problems)
    return Verdict(False, problems, first + found.sample, found.iteration)
