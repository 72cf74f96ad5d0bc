"""What adaptation with 5 slices is worth on measured data, with references and without; judged subject by subject.

Run: ``python -m benchmarks.self_supervised [--base FOLDER] [--steps N] [--patients 0 1 2 3 4]``

Low-field brain, 3x
    Measured k-space at 0.055 T, cropped or zero-padded to 128 x 128; leave one patient out: adapted with slices of the
    other patients of `--patients`.
Kidney, 4x
    Complex images with their own phase: adapted with the subject of one vendor, judged with that of the other.

The weights of total variation and wavelets are chosen on slices of the subjects that the adaptations learn from. With
references, subjects are held out to validate where there are several; without, lines validate. The table is written
into ``docs/real-kspace.md``.
Every result is written at once, and a run that was stopped continues: finished rows are kept as long as the base and
the settings are the same, and an adaptation goes on from its checkpoint in `--work`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from scripts.marked import write_between
from ulda.data import Domain, DomainWriter, Header, Record
from ulda.evaluation import chosen_weights, paired_difference
from ulda.io.atomic import atomic_output
from ulda.methods import ULDA, WEIGHTED, ZeroFilled
from ulda.methods.adaptation import adapt
from ulda.metrics import evaluate
from ulda.models.bundled import model_folder
from ulda.models.files import BASE_FORMAT, read_facts
from ulda.physics import CartesianMRI, Physics, cartesian_mask, center_crop_or_pad
from ulda.training.slices import choose_slices, normalised_images

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RESULTS = Path(__file__).parent / "results" / "self-supervised.json"
PAGE = Path(__file__).parents[1] / "docs" / "real-kspace.md"
CONTRASTS = ("FLAIR", "FSE", "GRE")
SIDE = 128
RATIOS = {"lowfield": 1 / 3, "kidney": 0.25}
SLICES = 5
"""So many are learned from."""

WEIGHED = 8
"""The most slices that the weight of a classical method is chosen with."""

CLASSICAL = {"total variation": WEIGHTED["TV"], "wavelet": WEIGHTED["wavelet"]}
ADAPTED = {"with references": False, "self-supervised": True}

Method = Callable[[Tensor, Physics], Tensor]


@dataclass(frozen=True)
class Fold:
    """Slices to learn from, and those of a subject that nobody learned from."""

    name: str
    subject: str
    train: Domain
    test: Domain


def write_lowfield(path: Path, data: Path, patients: Sequence[int]) -> Domain:
    """Write the low-field slices as one domain."""
    header = Header("lowfield", "kspace", "measured", phase_axis=-1)
    path.unlink(missing_ok=True)
    with DomainWriter(path, header) as writer:
        for patient in patients:
            for contrast in CONTRASTS:
                with h5py.File(data / "lowfield_brain" / f"patient{patient}_{contrast}.h5") as file:
                    kspace = torch.from_numpy(file["kspace"][()])
                for one in center_crop_or_pad(kspace, (SIDE, SIDE)):
                    writer.append(Record(one.numpy(), f"patient{patient}", contrast=contrast))
    return Domain.open(path)


def write_kidney(path: Path, data: Path) -> Domain:
    """Write the kidney slices as a domain."""
    path.unlink(missing_ok=True)
    with (
        np.load(data / "complex" / "kidney.npz") as found,
        DomainWriter(path, Header("kidney", "complex")) as writer,
    ):
        for image, subject in zip(found["images"], found["subject"], strict=True):
            writer.append(Record(image, str(subject)))
    return Domain.open(path)


def folds(names: Sequence[str], work: Path, data: Path, patients: Sequence[int]) -> Iterator[Fold]:
    """Yield who learns and who judges."""
    if "lowfield" in names:
        brain = write_lowfield(work / "lowfield.h5", data, patients)
        for subject in sorted(set(brain.subjects)):
            yield Fold("lowfield", subject, *parted(brain, subject))
    if "kidney" in names:
        kidney = write_kidney(work / "kidney.h5", data)
        for subject in sorted(set(kidney.subjects)):
            yield Fold("kidney", subject, *parted(kidney, subject))


def parted(domain: Domain, subject: str) -> tuple[Domain, Domain]:
    """Return the slices of all other subjects, and those of one."""
    others = [i for i, name in enumerate(domain.subjects) if name != subject]
    return domain.take(others), domain.select(subject=subject)


def scores(method: Method, domain: Domain, ratio: float) -> dict[str, float]:
    """Return the mean PSNR and SSIM of magnitudes with peak 1."""
    axis = domain.header.phase_axis
    images = normalised_images(domain)
    physics = CartesianMRI(cartesian_mask(images.shape[axis], ratio), axis)
    found = []
    for reference in images.split(4):
        with torch.no_grad():
            found.append(evaluate(method(physics.A(reference), physics).abs(), reference.abs()))
    return {
        "psnr": round(float(torch.cat([one.psnr for one in found]).mean()), 3),
        "ssim": round(float(torch.cat([one.ssim for one in found]).mean()), 4),
    }


def examples(domain: Domain, ratio: float) -> list[tuple[Tensor, Physics]]:
    """Return measurements of a few slices, to choose the strength of the regulariser with."""
    axis = domain.header.phase_axis
    images = normalised_images(domain.take(choose_slices(domain.subjects, min(SLICES, len(domain)))))
    physics = CartesianMRI(cartesian_mask(images.shape[axis], ratio), axis)
    return [(physics.A(image[None]), physics) for image in images]


def row_of(fold: Fold, method: str, base: str, changes: dict[str, Any], work: Path) -> dict[str, Any]:
    """Return the scores of one method on the slices of the subject that was left out."""
    ratio, facts = RATIOS[fold.name], dict[str, Any]()
    if method == "zero-filled":
        reconstruct: Method = ZeroFilled()
    elif method in CLASSICAL:
        axis = fold.train.header.phase_axis
        mask = cartesian_mask(fold.train.shape[axis], ratio)
        name = "TV" if method == "total variation" else method
        facts["weight"] = chosen_weights(fold.train, mask, largest=WEIGHED)[name]
        reconstruct = WEIGHTED[name](facts["weight"])
    elif method == "un-adapted":
        model = ULDA.load(model_folder(base))
        model.add_domain(fold.name)
        facts["strength"] = model.calibrate(fold.name, examples(fold.test, ratio))
        reconstruct = _of_domain(model, fold.name)
    else:
        result = adapt(
            base,
            fold.train,
            slices=SLICES,
            ratio=ratio,
            changes=changes,
            name=fold.name,
            self_supervised=ADAPTED[method],
            folder=work / f"{fold.name}-{fold.subject}-{method.replace(' ', '-')}",
        )
        facts = {key: result.facts[key] for key in ("n_slices", "n_subjects", "validation", "seconds")}
        reconstruct = _of_domain(result.model, fold.name)
    return {"set": fold.name, "subject": fold.subject, "method": method} | scores(reconstruct, fold.test, ratio) | facts


def _of_domain(model: Any, domain: str) -> Method:
    return lambda y, physics: model(y, physics, domain)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the gain of every method over the un-adapted base by set: mean and bootstrap interval by subject."""
    found: dict[str, Any] = {}
    start = {(row["set"], row["subject"]): row for row in rows if row["method"] == "un-adapted"}
    for row in rows:
        if row["method"] != "un-adapted" and (key := (row["set"], row["subject"])) in start:
            gain = row["psnr"] - start[key]["psnr"], row["ssim"] - start[key]["ssim"]
            found.setdefault(row["set"], {}).setdefault(row["method"], []).append(gain)
    return {name: {method: _mean(gains) for method, gains in by.items()} for name, by in found.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of PSNR and SSIM, a row for each subject, and what the adaptations gain by set."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [f"| set | left out | {' | '.join(methods)} |", "| --- | --- |" + " --- |" * len(methods)]
    for name, subject in dict.fromkeys((row["set"], row["subject"]) for row in rows):
        found = {row["method"]: row for row in rows if (row["set"], row["subject"]) == (name, subject)}
        cells = [f"{found[m]['psnr']:.2f} / {found[m]['ssim']:.3f}" if m in found else "-" for m in methods]
        lines.append(f"| {name} | {subject} | {' | '.join(cells)} |")
    lines += ["", "| set | gain over un-adapted | PSNR | 95 % interval by subject |", "| --- | --- | --- | --- |"]
    for name, by_method in summary(rows).items():
        for method in (method for method in ADAPTED if method in by_method):
            found = by_method[method]
            low, high = found["interval"]
            lines.append(f"| {name} | {method} | {found['psnr']:+.2f} dB | [{low:+.2f}, {high:+.2f}] |")
    return "\n".join(lines)


def _mean(gains: list[tuple[float, float]]) -> dict[str, Any]:
    psnr, ssim = (np.array(values) for values in zip(*gains, strict=True))
    subjects = [str(number) for number in range(len(gains))]
    found = paired_difference(psnr, np.zeros_like(psnr), subjects)
    return {
        "psnr": round(float(psnr.mean()), 3),
        "ssim": round(float(ssim.mean()), 4),
        "interval": [round(found.low, 3), round(found.high, 3)],
        "subjects": len(gains),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="base", help="a bundled base, or the folder of one")
    parser.add_argument("--steps", type=int, help="steps of an adaptation; by default those of the preset")
    parser.add_argument("--patients", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of the low-field brains")
    parser.add_argument("--sets", nargs="+", choices=sorted(RATIOS), default=sorted(RATIOS))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("runs/self-supervised"), help="where checkpoints go")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    changes = {} if options.steps is None else {"steps": options.steps}
    weights = read_facts(model_folder(options.base), BASE_FORMAT)["weights"]
    what = {
        "base_weights": weights,
        "changes": changes,
        "patients": options.patients,
        "slices": SLICES,
        "ratios": RATIOS,
    }
    rows: list[dict[str, Any]] = []
    if options.out.exists():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        rows = earlier["rows"] if {key: earlier.get(key) for key in what} == what else []
    methods = ("zero-filled", *CLASSICAL, "un-adapted", *ADAPTED)
    place = options.work / "-".join([weights[:12], str(options.steps), *map(str, options.patients)])
    for fold in folds(options.sets, options.work, options.data, options.patients):
        for method in methods:
            if any((row["set"], row["subject"], row["method"]) == (fold.name, fold.subject, method) for row in rows):
                continue
            rows.append(row := row_of(fold, method, options.base, changes, place))
            content = what | {"torch": torch.__version__, "gain_over_unadapted": summary(rows), "rows": rows}
            with atomic_output(options.out, overwrite=True) as temporary:
                temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            print(f"{fold.name:10}{fold.subject:16}{method:18}{row['psnr']:8.2f}{row['ssim']:8.3f}", flush=True)
    write_between(PAGE, "<!-- adapted -->", "<!-- end -->", f"\n{table(rows)}\n")


if __name__ == "__main__":
    main()
