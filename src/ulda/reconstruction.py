"""Reconstruct a whole file, a few slices at a time, into images and a run file that proves them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ulda.api import reconstruct
from ulda.data.image_output import image_suffix, save_images
from ulda.data.measurements import Undersampling, count_slices, measurements, slice_affine
from ulda.data.readers import KindChoice
from ulda.errors import UldaError
from ulda.solvers import run_output
from ulda.solvers.outputs import check_free, run_file
from ulda.training.files import base_fingerprint
from ulda.training.network import ULDA

SLICES_AT_A_TIME = 4
"""More would need more memory and gain no speed on a CPU."""


@dataclass(frozen=True)
class FileSummary:
    """What `reconstruct_file` did."""

    out: str
    run_file: str
    domain: str
    n_slices: int
    shape: tuple[int, int]
    n_coils: int
    sampled: float
    phases: float
    accepted: float
    every_step_descended: bool
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def reconstruct_file(
    model: ULDA,
    source: str | Path,
    out: str | Path,
    *,
    undersampling: Undersampling | None = None,
    domain: str | None = None,
    iterations: int | None = None,
    kind: KindChoice = "auto",
    command: str = "",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> FileSummary:
    """Reconstruct all slices of a file or folder.

    Parameters
    ----------
    model, domain, iterations
        As for `ulda.reconstruct`.
    source
        A file or folder of any known format, with one or several coils.
    out
        ``.h5`` for a run file with the images; or images as ``.nii``, ``.nii.gz``, ``.png`` or ``.npy``
        (`ulda.data.image_output`), with the run file ``OUT.run.h5`` beside them.
    undersampling
        The lines to keep of fully sampled data; data that arrive undersampled need none.
    kind
        What arrays without metadata hold.
    command
        How it came about, to be told in the file.
    overwrite
        Replace existing files.
    progress
        Called with the number of slices done and the number of all.
    """
    out, start = Path(out), time.perf_counter()
    total = count_slices(source, kind)
    run_path = run_file(out)
    if Path(source).resolve() in (out.resolve(), run_path.resolve()):
        raise UldaError(f"the output {out} would replace the input; choose another name")
    if not overwrite:
        check_free(out, total)
    chosen = model.active_domain(domain)
    facts = {"base": base_fingerprint(model), "domain": chosen, "input": Path(source).name}
    facts |= {"command": command} if command else {}
    images: list[Tensor] = []
    ratios: list[float] = []
    samples: list[dict[str, Any]] = []
    n_coils, n_done = 1, 0
    with run_output(run_path, model.regularizer(chosen).materialize(), facts, overwrite=overwrite) as writer:
        for measured in measurements(source, undersampling or Undersampling(), kind, batch_size=SLICES_AT_A_TIME):
            result = reconstruct(model, measured.y, measured.physics, domain=chosen, iterations=iterations)
            run = result.trace, result.measurement, result.physics, result.solution
            samples += writer.append(*run, scale=result.scale)["samples"]
            images += [result.image] if image_suffix(out) else []
            ratios += [measured.physics.mask.ratio] * len(measured.y)
            n_coils, n_done = measured.y.shape[-3] if measured.y.ndim == 4 else 1, n_done + len(measured.y)
            shape = (result.image.shape[-2], result.image.shape[-1])
            if progress:
                progress(n_done, max(n_done, total))
        if images:
            save_images(out, torch.cat(images).numpy(), affine=slice_affine(source), overwrite=overwrite)
    branches = [step["branch"] for sample in samples for step in sample["iterations"]]
    return FileSummary(
        out=str(out),
        run_file=str(run_path),
        domain=chosen,
        n_slices=n_done,
        shape=shape,
        n_coils=n_coils,
        sampled=sum(ratios) / n_done,
        phases=len(branches) / n_done,
        accepted=branches.count("u") / len(branches),
        every_step_descended=all(sample["every_step_descended"] for sample in samples),
        seconds=time.perf_counter() - start,
    )
