"""Random single changes of outputs of all formats: which of them `ulda verify` finds, and which no replay can.

Run: ``python -m benchmarks.tampering``. It prints the counts, writes them to ``benchmarks/results/tampering.json`` and
into ``docs/certificate.md``. A test asserts the same of fewer changes.

The outputs are of the bundled base, on slices of 8 x 8: one coil and several, another start than zero-filling, images
beside the run file. A plain change is all that is done; a forged one has all digests made anew, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import ulda
from benchmarks.tampered import Change, apply, change_bytes, draw, forge, parts_of
from scripts.marked import write_between
from ulda.data import demo
from ulda.data.image_output import save_images
from ulda.errors import UldaError
from ulda.physics import CartesianMRI, MultiCoilMRI, Physics, cartesian_mask
from ulda.solvers import RunWriter, run_output, verify_output
from ulda.solvers.manifest import check_manifest
from ulda.solvers.outputs import RUN_SUFFIXES, check_parts, run_file
from ulda.solvers.record import rescale

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- tampering: begin -->", "<!-- tampering: end -->"
SIDE = 8
CHANGES, FORGED = 4000, 2000

WHOLE = 10
"""One plain change in so many is verified with a replay as well, not by the digests alone."""

FORMATS = (".h5", ".npy", ".nii", ".nii.gz", ".png")
AFFINE = np.array([[-1.5, 0, 0, 10], [0, 1.5, 0, -20], [0, 0, 3, 5], [0, 0, 0, 1.0]])

IMAGE_CHANGES = ("bit", "byte", "cut", "added", "missing")

UNSEEN = {
    "input, base, domain and command, which are only stated": r"@facts",
    "versions of the software": r"runs@certificate\.software",
    "how the mask was drawn: its kind and seed": r"runs@mask",
    "the place of the slices, in the header of NIfTI": r"knee\.nii (bit|byte)",
    "options that another run of the same iterations may have": r"runs@certificate\.options",
    "numbers whose effect is below the rounding of a replay": r"(weights/|runs/|image|scale|@reg.*delta)[^@]* value",
    "bytes of an image file that hold no pixel": r"knee[^@]* (bit|byte|cut|added)",
    "entries that nothing reads, and the same numbers in another type": r".* (added|type)",
    "an entry whose absence means what it said": r"@regularizer\.delta removed",
}
"""What a replay cannot tell from an honest run once all digests are made anew: in words, and the topics."""

UNFORGED = r".*(@manifest|@certificate\.(fingerprints|digest))"
"""The topics that a forgery makes anew: nothing remains of their change."""


@dataclass(frozen=True)
class Output:
    """An output of `ulda reconstruct` in memory: the name to verify, and the bytes of its files."""

    name: str
    files: dict[str, bytes]

    @property
    def run_name(self) -> str:
        """The name of its run file."""
        return run_file(self.name).name

    @property
    def images(self) -> list[str]:
        """The names of the images beside it, in their order."""
        return sorted(name for name in self.files if name != self.run_name)

    def write(self, folder: Path) -> Path:
        """Write all files and return the path to verify."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder / self.name


@dataclass(frozen=True)
class Outcome:
    """A change, and what verification said: nothing, or a text that names the changed part or does not."""

    suffix: str
    change: Change
    forged: bool
    said: str

    @property
    def named(self) -> bool:
        """Whether the changed part is named."""
        return self.change.named in self.said


def make_outputs(folder: Path) -> list[Output]:
    """Reconstruct, and write an output of every format into an empty folder."""
    model = ulda.load("base")
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, 48 : 48 + SIDE, 48 : 48 + SIDE]
    mask, maps = cartesian_mask(SIDE, 0.5, seed=1), torch.full((1, 2, SIDE, SIDE), 0.5**0.5, dtype=torch.complex64)
    operators: list[Physics] = [CartesianMRI(mask), MultiCoilMRI(mask, maps), CartesianMRI(mask)]
    solved = []
    for number, physics in enumerate(operators):
        y, physics, peak = model.prepared(physics.A(images[number % 2][None]), physics)
        x0 = physics.A_adjoint(y) * (0.5 if number == 2 else 1)
        with torch.no_grad():
            x, trace = model.solve(y, physics, "unadapted", model.options("unadapted", safeguard=True), x0=x0)
        solved.append((trace, y, physics, x, x0, peak.flatten()))
    facts = {
        "base": model.fingerprint,
        "domain": "unadapted",
        "input": "knee.h5",
        "command": "ulda reconstruct knee.h5",
    }
    outputs = []
    for suffix, chosen in zip(FORMATS, ((2,), (1,), (0,), (1,), (0, 1)), strict=True):
        place = Path(tempfile.mkdtemp(dir=folder))
        out = place / f"knee{suffix}"
        with run_output(run_file(out), model.regularizer("unadapted"), facts) as writer:
            _append(writer, [solved[number] for number in chosen], out)
        outputs.append(Output(out.name, {path.name: path.read_bytes() for path in place.iterdir()}))
    return outputs


def _append(writer: RunWriter, runs: list[Any], out: Path) -> None:
    images = []
    for trace, y, physics, x, x0, scale in runs:
        writer.append(trace, y, physics, x, x0, scale)
        images.append(rescale(physics.shown(x, y), scale))
    if out.suffix not in RUN_SUFFIXES:
        writer.images = save_images(out, torch.cat(images).numpy(), affine=AFFINE)


def campaign(folder: Path, n_changes: int, n_forged: int, seed: int = 0) -> Iterator[Outcome]:
    """Make changes, first one of each part and then random ones, and verify each of them.

    Parameters
    ----------
    folder
        An empty folder to work in.
    n_changes
        The number of plain changes.
    n_forged
        How many of them to verify with all digests made anew as well, spread evenly over all.
    seed
        Seed of all changes.
    """
    rng, outputs = random.Random(seed), make_outputs(folder)
    every = [(output, part) for output in outputs for part in _parts(output, folder)]
    rng.shuffle(every)
    for number in range(n_changes):
        output, part = every[number] if number < len(every) else rng.choice(every)
        out = output.write(folder)
        change = _make(output, part, folder, rng)
        suffix = output.name.removeprefix("knee")
        # the digests alone must tell; that all of verification agrees is seen now and then
        yield Outcome(suffix, change, False, _said(out) if number % WHOLE == 0 else _digests_say(out, output, part))
        is_due = number * n_forged // n_changes != (number + 1) * n_forged // n_changes
        if is_due and not re.match(UNFORGED, change.topic):
            images = [folder / name for name in output.images]
            forge(folder / output.run_name, images)
            yield Outcome(suffix, change, True, _said(out))


def _parts(output: Output, folder: Path) -> list[str]:
    output.write(folder)
    with h5py.File(folder / output.run_name) as file:
        return parts_of(file) + [name for name in output.images for _ in IMAGE_CHANGES]


def _make(output: Output, part: str, folder: Path, rng: random.Random) -> Change:
    if part in output.images:
        change = Change(part, None, rng.choice(IMAGE_CHANGES))
        if change.kind == "missing":
            (folder / part).unlink()
        else:
            (folder / part).write_bytes(change_bytes(output.files[part], change.kind, rng))
        return change
    with h5py.File(folder / output.run_name, "r+") as file:
        change = draw(file, part, rng)
        apply(file, change, rng)
    return change


def _said(out: Path) -> str:
    """Return what `ulda verify` says."""
    try:
        return "; ".join(verify_output(out).verdict.problems)
    except UldaError as error:
        return str(error)


def _digests_say(out: Path, output: Output, part: str) -> str:
    """Return what the first step of verification says: the comparison with the manifest."""
    if part in output.images:
        return "; ".join(check_parts(out).problems)
    path = out.with_name(output.run_name)
    with h5py.File(path) as file:
        return "; ".join(check_manifest(file, path.stat().st_size).problems)


def unseen(change: Change) -> str:
    """Return in words why no replay sees a forged change; empty where it must."""
    return next((words for words, topic in UNSEEN.items() if re.match(topic, change.topic)), "")


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Count what was found: by format, and of the forged changes by what cannot be seen."""
    formats, limits = [], []
    for suffix in FORMATS:
        plain, forged = (
            [one for one in outcomes if (one.suffix, one.forged) == (suffix, kind)] for kind in (False, True)
        )
        formats.append(
            {
                "format": suffix,
                "plain": len(plain),
                "found": sum(bool(one.said) for one in plain),
                "named": sum(one.named for one in plain),
                "forged": len(forged),
                "forged_found": sum(bool(one.said) for one in forged),
            }
        )
    for words in (*UNSEEN, ""):
        forged = [one for one in outcomes if one.forged and unseen(one.change) == words]
        limits.append({"what": words, "forged": len(forged), "unseen": sum(not one.said for one in forged)})
    return {"formats": formats, "limits": limits}


def markdown(counts: dict[str, Any]) -> str:
    """Return the counts as two tables."""
    lines = [
        "| output | single changes | found and named | with all digests made anew | found |",
        "|---|---|---|---|---|",
    ]
    for row in counts["formats"]:
        found = min(row["found"], row["named"])
        lines.append(f"| `{row['format']}` | {row['plain']} | {found} | {row['forged']} | {row['forged_found']} |")
    lines += ["", "| what was changed, all digests made anew | changes | not seen |", "|---|---|---|"]
    lines += [f"| {row['what'] or 'anything else'} | {row['forged']} | {row['unseen']} |" for row in counts["limits"]]
    return "\n".join(lines)


def main() -> None:
    """Run the campaign; print, write and document its counts."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--forged", type=int, default=FORGED)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcomes = list(campaign(Path(name), chosen.changes, chosen.forged))
    counts = summary(outcomes)
    print(markdown(counts))
    content = {"command": "python -m benchmarks.tampering", "seed": 0, "side": SIDE, **counts}
    path = ROOT / "benchmarks" / "results" / "tampering.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_between(ROOT / "docs" / "certificate.md", BEGIN, END, markdown(counts))
    for one in outcomes:
        if not one.said and (not one.forged or not unseen(one.change)):
            print("not found:", one)


if __name__ == "__main__":
    main()
