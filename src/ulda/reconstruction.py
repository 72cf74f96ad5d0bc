"""Load a model and reconstruct: measurements in memory, or a whole file a few slices at a time, with certificates."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ulda.data.image_output import image_suffix, save_images
from ulda.data.measurements import Undersampling, count_slices, measurements, slice_affine
from ulda.data.readers import KindChoice
from ulda.errors import UldaError
from ulda.io.file_set import file_set
from ulda.io.locks import locked_file
from ulda.methods.strength import SLICES
from ulda.methods.ulda import ULDA, UNADAPTED
from ulda.models import Regularizer
from ulda.models.bundled import model_folder
from ulda.models.files import BASE_FORMAT, read_facts
from ulda.physics import DETECTED, Physics, noise_level
from ulda.solvers import Trace, Verdict, certify, save_run, verify
from ulda.solvers.outputs import check_places, output_name, run_file
from ulda.solvers.record import RunWriter, rescale, run_writer

NOT_FOR_COMPLEX = (
    "this base was trained on real-valued images without noise and is not fit for complex data, "
    "such as all measured k-space; a classical method is better there"
)

SLICES_AT_A_TIME = 4
"""More would need more memory and gain no speed on a CPU."""


def load(name_or_path: str | Path = "base", adapter: str | Path | None = None) -> ULDA:
    """Load a model, with an adapter if one is given.

    Parameters
    ----------
    name_or_path
        The name of a bundled model, or a folder with ``model.safetensors`` and ``model.json``.
    adapter
        The name of a bundled adapter, or a folder with ``adapter.safetensors`` and ``adapter.json``. Its domain is the
        one the model uses. Without an adapter the model uses the mean of its source adapters, the domain ``unadapted``.

    Raises
    ------
    UldaError
        When there is no such model (the sentence lists the bundled ones), or the adapter belongs to another base.
    """
    model = ULDA.load(model_folder(name_or_path, "base"))
    if adapter is not None:
        model.domain = model.load_adapter(model_folder(adapter, "adapter"))
    else:
        model.add_domain(UNADAPTED, rank=0)
        model.domain = UNADAPTED
    return model.eval()


def model_notes(name_or_path: str | Path = "base") -> list[str]:
    """Return what a user of a model must know, a sentence each."""
    card = read_facts(model_folder(name_or_path, "base"), BASE_FORMAT).get("card")
    acquisition = card.get("acquisition", "ideal") if isinstance(card, dict) else "ideal"
    return [NOT_FOR_COMPLEX] if acquisition == "ideal" else []


@dataclass(frozen=True)
class Result:
    """A reconstruction with all that is needed to verify it.

    Attributes
    ----------
    image
        The complex image, in the units of the measurement: ``(H, W)``, or ``(n, H, W)`` for a batch.
    trace
        The record of the run.
    certificate
        What the run proves; it belongs to the scaled measurement.
    measurement, physics, regularizer
        What was solved: the scaled measurements ``(n, ...)``, their operator with the phase and noise that they say of
        themselves, and a copy of the regulariser.
    start, solution
        Where the solver started, and its result: ``(n, H, W)``, in the scale of `measurement`.
    scale
        By what each slice had been divided, ``(n,)``; 0 for an empty slice, whose image is empty, too.
    facts
        The fingerprint of the base and the domain.
    """

    image: Tensor
    trace: Trace
    certificate: dict[str, Any]
    measurement: Tensor
    physics: Physics
    regularizer: Regularizer
    start: Tensor
    solution: Tensor
    scale: Tensor
    facts: dict[str, Any]

    def verify(self) -> Verdict:
        """Replay the run and compare it with the certificate."""
        return verify(self.certificate, self.measurement, self.physics, self.regularizer, self.solution, self.start)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a run file, HDF5 with the image and all that ``ulda verify`` needs."""
        run = self.trace, self.measurement, self.physics, self.regularizer, self.solution, self.start
        save_run(path, *run, scale=self.scale, facts=self.facts, overwrite=overwrite)


@torch.no_grad()
def reconstruct(
    model: ULDA, y: Tensor, physics: Physics, *, domain: str | None = None, iterations: int | None = None
) -> Result:
    """Reconstruct measurements of any size and scale; every phase is checked to descend the objective.

    Parameters
    ----------
    model
        A model, e.g. from `load`.
    y
        Complex k-space on the full grid: ``(H, W)`` or ``(n, H, W)``; with several coils ``(coils, H, W)`` or
        ``(n, coils, H, W)``.
    physics
        The operator that measured `y`.
    domain
        Whose adapter to use; by default the one the model was loaded with.
    iterations
        How many phases; by default as many as the model was trained with.

    Examples
    --------
    >>> import ulda
    >>> from ulda.data import demo
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> from ulda.methods import ULDA
    >>> model = ULDA(sources=["brain"], width=4, depth=2, phases=3)
    >>> physics = CartesianMRI(cartesian_mask(128, 0.2))
    >>> result = ulda.reconstruct(model, physics.A(demo("knee").image(10)), physics, domain="brain")
    >>> result.image.shape, result.certificate["samples"][0]["every_step_descended"], result.verify().ok
    (torch.Size([128, 128]), True, True)
    """
    is_batch = y.ndim == physics.signal_dims + 1
    if not is_batch and y.ndim != physics.signal_dims:
        shape = "(H, W)" if physics.signal_dims == 2 else "(coils, H, W)"
        raise UldaError(
            f"the measurement has shape {tuple(y.shape)}, but it must be {shape}, or a batch (n, ...) of it"
        )
    if y.numel() == 0 or not torch.isfinite(y).all():
        raise UldaError("the measurement is empty, or holds NaN or infinite values")
    chosen = model.active_domain(domain)
    regularizer = model.regularizer(chosen).materialize()
    changes: dict[str, Any] = {} if iterations is None else {"iterations": iterations}
    options = model.options(chosen, safeguard=True, **changes)
    scaled, physics, peak = model.prepared(_in_precision_of(model, y if is_batch else y[None]), physics)
    start = model.start(scaled, physics)
    solution, trace = model.solve(scaled, physics, chosen, options, x0=start)
    scale = peak.flatten() * (scaled.flatten(1).abs().amax(1) > 0)
    image = rescale(physics.shown(solution, scaled), scale)
    return Result(
        image=image if is_batch else image[0],
        trace=trace,
        certificate=certify(trace, scaled, physics, regularizer, solution, start),
        measurement=scaled,
        physics=physics,
        regularizer=regularizer,
        start=start,
        solution=solution,
        scale=scale,
        facts={"base": model.fingerprint, "domain": chosen},
    )


def _in_precision_of(model: ULDA, y: Tensor) -> Tensor:
    """Convert complex k-space to the precision of the weights."""
    is_double = next(model.parameters()).dtype == torch.float64
    return y.to(torch.complex128 if is_double else torch.complex64) if y.is_complex() else y


def with_noise(physics: Physics, y: Tensor, noise: str) -> Physics:
    """Return the operator of measurements with the noise that a reconstruction is to remove.

    Parameters
    ----------
    physics, y
        A batch of measurements and their operator.
    noise
        ``keep``: reconstruct what a full scan would have shown, with its noise. ``auto``: remove the noise, as it is
        estimated from the corners of k-space. A number: remove noise whose real and imaginary part have this standard
        deviation, in the units of the file.
    """
    if noise == "keep":
        return physics
    if noise == "auto":
        return physics.with_knowledge(noise=noise_level(y, physics.mask, physics.axis))
    try:
        level = float(noise)
    except ValueError:
        level = math.nan
    if not 0 <= level < math.inf:
        raise UldaError(f"the noise is keep, auto or a standard deviation of at least 0, but it is {noise}")
    return physics.with_knowledge(noise=torch.full((len(y),), level))


@dataclass(frozen=True)
class FileSummary:
    """What `reconstruct_file` did.

    Attributes
    ----------
    sampled
        The fraction of the lines that was sampled.
    n_detected
        The number of slices without a mask, whose empty lines count as not sampled.
    """

    out: str
    run_file: str
    domain: str
    n_slices: int
    shape: tuple[int, int]
    n_coils: int
    sampled: float
    n_detected: int
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
    noise: str = "keep",
    strength: float | None = None,
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
    noise
        What to do with the noise, see `with_noise`.
    strength
        How strong the regulariser is, 1 for that of the training. None: the un-adapted base of a network that chooses
        (`choose_strength`) chooses on a few slices of the file, by held-out lines; an adapter is as it was made.
    command
        How it came about, to be told in the file.
    overwrite
        Replace existing files.
    progress
        Called with the number of slices done and the number of all.
    """
    out, start = Path(out), time.perf_counter()
    total, run_path = count_slices(source, kind), run_file(out)
    chosen = model.active_domain(domain)
    chosen_lines = undersampling or Undersampling()
    model = copy.deepcopy(model)
    if strength is not None:
        model.scale(chosen, strength)
    elif chosen == UNADAPTED and model.network.choose_strength:
        strength = model.calibrate(chosen, _examples(source, chosen_lines, kind, total))
    facts = {"base": model.fingerprint, "domain": chosen, "strength": strength or 1.0, "input": Path(source).name}
    facts |= {"command": command} if command else {}
    images: list[Tensor] = []
    ratios: list[float] = []
    samples: list[dict[str, Any]] = []
    n_coils, n_done, n_detected = 1, 0, 0
    regularizer = model.regularizer(chosen).materialize()
    with _output(out, Path(source), total, regularizer, facts, overwrite=overwrite) as (folder, writer):
        for measured in measurements(source, chosen_lines, kind, batch_size=SLICES_AT_A_TIME):
            physics = with_noise(measured.physics, measured.y, noise)
            result = reconstruct(model, measured.y, physics, domain=chosen, iterations=iterations)
            run = result.trace, result.measurement, result.physics, result.solution, result.start
            samples += writer.append(*run, scale=result.scale)["samples"]
            images += [result.image] if image_suffix(out) else []
            ratios += [measured.physics.mask.ratio] * len(measured.y)
            n_detected += len(measured.y) * (measured.physics.mask.kind == DETECTED)
            n_coils, n_done = measured.y.shape[-3] if measured.y.ndim == 4 else 1, n_done + len(measured.y)
            shape = (result.image.shape[-2], result.image.shape[-1])
            if progress:
                progress(n_done, max(n_done, total))
        if images:
            pixels = torch.cat(images).numpy()
            writer.images = save_images(folder / out.name, pixels, affine=slice_affine(source))
    seconds, sampled = time.perf_counter() - start, sum(ratios) / n_done
    done = n_done, shape, n_coils, sampled, n_detected
    return FileSummary(str(out), str(run_path), chosen, *done, *_statistics(samples), seconds)


def _examples(
    source: str | Path, undersampling: Undersampling, kind: KindChoice, total: int
) -> Iterator[tuple[Tensor, Physics]]:
    """Yield a few slices of a file, spread over it."""
    wanted = {round((i + 0.5) * (total - 1) / SLICES) for i in range(SLICES)}
    first = 0
    for measured in measurements(source, undersampling, kind, batch_size=SLICES_AT_A_TIME):
        for number in sorted(wanted & set(range(first, first + len(measured.y)))):
            index = torch.tensor([number - first])
            yield measured.y[index], measured.physics.take(index)
        first += len(measured.y)
        if first > max(wanted):
            return


@contextmanager
def _output(
    out: Path, source: Path, total: int, regularizer: Regularizer, facts: dict[str, Any], *, overwrite: bool
) -> Iterator[tuple[Path, RunWriter]]:
    """Lock an output; give the folder of its new files, and the writer of its runs."""
    name, run_name = output_name(out), run_file(out).name
    with locked_file(name):
        _check_place(out, source, total, overwrite=overwrite)
        with (
            file_set(name, overwrite=overwrite) as folder,
            run_writer(folder / run_name, regularizer, facts) as writer,
        ):
            yield folder, writer


def _check_place(out: Path, source: Path, total: int, *, overwrite: bool) -> None:
    if source.resolve() in (out.resolve(), run_file(out).resolve()):
        raise UldaError(f"the output {out} would replace the input; choose another name")
    check_places(out, total, overwrite=overwrite)


def _statistics(samples: list[dict[str, Any]]) -> tuple[float, float, bool]:
    """Return the phases per slice, the fraction of them that took a proposal, and whether all of them descended."""
    branches = [step["branch"] for sample in samples for step in sample["iterations"]]
    all_descended = all(sample["every_step_descended"] for sample in samples)
    return len(branches) / len(samples), branches.count("u") / len(branches), all_descended
