"""What scanners deliver: the un-adapted base against the classical methods, with the same maps and masks.

Run: ``python -m benchmarks.real_kspace`` (about half an hour on one core the first time). It is resumable: each set is
written when it is done, classical results to ``benchmarks/results/real-kspace-classical.json`` and those of the base,
with its fingerprint, to ``benchmarks/results/real-kspace.json``; another base computes its own rows alone. The tables
are written into ``docs/real-kspace.md``, and pictures beside its figures.

TV, wavelet and ``bart pics`` have the weight that is best on the mean PSNR of the very slices of a set, so they are
stronger here than in practice. The base chooses the strength of its regulariser as ``ulda reconstruct`` does: on three
slices of a set, by held-out lines, without references.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from scripts.marked import write_between
from ulda.data.readers.fastmri import PHASE_AXIS
from ulda.evaluation.learned import Learned
from ulda.methods import Method, TotalVariation, Wavelet, ZeroFilled
from ulda.methods.strength import SLICES
from ulda.methods.ulda import ULDA, UNADAPTED
from ulda.methods.weights import climb
from ulda.metrics import ssim_map
from ulda.models.bundled import model_folder
from ulda.physics import (
    ACQUISITIONS,
    CartesianMRI,
    Mask,
    MultiCoilMRI,
    Physics,
    cartesian_mask,
    coil_combine,
    coil_physics,
    equispaced_mask,
    fourier_resize,
    ifft2c,
)
from ulda.physics.acquisition import with_given_masks
from ulda.reconstruction import load

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "real-kspace.md"
FIGURES = ROOT / "docs" / "figures"
CLASSICAL, BASE = "real-kspace-classical.json", "real-kspace.json"
WEIGHTS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
NOISY_WEIGHTS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
SMALL_WEIGHTS = tuple(weight / 8 for weight in WEIGHTS)
BART = {"bart wavelet": "-i60 -RW:3:0:", "bart TV": "-u0.01 -i60 -RT:3:0:"}
"""The ADMM penalty of TV is far below BART's default, with which it has not converged after 300 iterations."""

CHOOSING = 6
"""The largest number of cases that weights are chosen on; never more than every second one."""

METHODS = {"zero-filling": "zero-filling", "TV": "TV", "wavelet": "wavelet"} | {
    "bart wavelet": "`bart pics` l1-wavelet",
    "bart TV": "`bart pics` TV",
}
Score = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """A slice: its measurement ``(1, ...)``, operator, complex reference ``(1, H, W)`` and the pixels that count."""

    group: str
    y: Tensor
    physics: Physics
    reference: Tensor
    support: Tensor


@dataclass(frozen=True)
class Collection:
    """A set of slices with one weight for each method, and the margin in dB that the base is asked to have."""

    name: str
    title: str
    bar: float
    cases: Callable[[], Iterator[Case]]
    weights: tuple[float, ...] = WEIGHTS


def score(x: Tensor, reference: Tensor, support: Tensor) -> Score:
    """Return PSNR and SSIM of magnitude images ``(H, W)`` over the pixels of a support, whose peak is the data range.

    A window of SSIM counts when its centre lies in the support.
    """
    peak = float(reference[support].max())
    psnr = 10 * torch.log10(peak**2 / (x - reference)[support].double().square().mean())
    values = ssim_map(x, reference, data_range=peak)
    border = (x.shape[-1] - values.shape[-1]) // 2
    inside = support[border : support.shape[0] - border, border : support.shape[1] - border]
    return float(psnr), float(values[inside].mean())


def summary(results: dict[str, Any], base: dict[str, Any] | None, bar: float) -> dict[str, Any]:
    """Compare the base with the best classical method by mean PSNR: margin in dB, and whether the bar is met."""
    means = {name: _mean(found["psnr"]) for name, found in results.items()}
    best = max(means, key=lambda name: means[name])
    if base is None:
        return {"best": best, "classical": means[best], "margin": None, "met": None}
    margin = _mean(base["psnr"]) - means[best]
    return {"best": best, "classical": means[best], "margin": margin, "met": margin >= bar}


# The sets


def multi_coil(path: Path, mask: Callable[[int], Mask]) -> Iterator[Case]:
    """Yield the slices of measured multi-coil k-space; maps from the sampled calibration lines."""
    with h5py.File(path) as file:
        slices = torch.from_numpy(file["kspace"][()])
    for number, kspace in enumerate(slices):
        drawn = mask(kspace.shape[PHASE_AXIS])
        y = (kspace * drawn.lines)[None]
        physics = coil_physics(y, drawn, PHASE_AXIS)
        reference = coil_combine(ifft2c(kspace[None]), physics.maps)
        yield Case(f"slice {number}", y, physics, reference, physics.maps.abs().square().sum(-3)[0] > 0)


def low_field(patients: Sequence[int], acceleration: float) -> Iterator[Case]:
    """Yield the middle two slices of each contrast of the low-field patients."""
    for patient in patients:
        for contrast in ("FLAIR", "FSE", "GRE"):
            with h5py.File(DATA / "lowfield_brain" / f"patient{patient}_{contrast}.h5") as file:
                slices = torch.from_numpy(file["kspace"][1:3])
            for kspace in slices:
                mask = cartesian_mask(kspace.shape[PHASE_AXIS], 1 / acceleration)
                physics = CartesianMRI(mask, PHASE_AXIS)
                yield _whole(f"patient {patient}", kspace[None] * mask.lines, physics, ifft2c(kspace[None]))


def complex_images(name: str) -> Iterator[Case]:
    """Yield at most 8 test images with measured phase, at 4x with one coil."""
    with np.load(DATA / "complex" / f"{name}.npz") as file:
        test = file["split"] == "test"
        images, subjects = file["images"][test], file["subject"][test]
    for number in _spread(len(images), 8):
        image = torch.from_numpy(images[number])[None]
        mask = cartesian_mask(image.shape[-2], 0.25, seed=int(number))
        physics = CartesianMRI(mask)
        yield _whole(str(subjects[number]), physics.A(image), physics, image)


def domain(name: str, acquisition: str, split: str, largest: int, snr: float | None = None) -> Iterator[Case]:
    """Yield slices of an image domain at 128 px through a simulated acquisition, with a 20 % Gaussian mask."""
    with np.load(DATA / f"{name}.npz") as file:
        chosen = file["split"] == split
        images, subjects = file["images"][chosen], file["subject"][chosen]
    found = with_given_masks(ACQUISITIONS[acquisition])
    if snr is not None:
        found = replace(found, snr_db=(snr, snr))
    for number in _spread(len(images), largest):
        image = torch.from_numpy(images[number].astype(np.float32)).to(torch.complex64)[None]
        image = fourier_resize(image, (128, 128)).abs()
        image = (image / image.max()).to(torch.complex64)
        mask, generator = cartesian_mask(128, 0.2, seed=int(number)), torch.Generator().manual_seed(int(number))
        y, physics, reference = found.measure(image, generator, mask, keep_noise=snr is None)
        yield _whole(str(subjects[number]), y, physics, reference)


def collections() -> list[Collection]:
    """Return all sets, in the order of the page."""
    found = []
    for acceleration, weights in ((2, SMALL_WEIGHTS), (3, WEIGHTS)):
        title, cases = f"low-field brain, {acceleration}x", partial(low_field, range(5), acceleration)
        found.append(Collection(f"lowfield-{acceleration}x", title, 0.0, cases, weights))
    for name, title in (("kidney", "kidney"), ("spine_fatwater", "spine"), ("brain_fieldmap", "field-map brain")):
        found.append(Collection(f"complex-{name}", f"{title}, 4x", 1.0, partial(complex_images, name)))
    for name, title in (("brain_body_2ch", "2-coil brain"), ("phantom_13of16ch", "13-coil phantom")):
        path = DATA / "multicoil" / f"pulseq_cimax_{name}.h5"
        cases = partial(multi_coil, path, partial(cartesian_mask, ratio=0.25))
        found.append(Collection(f"multicoil-{name}", f"{title}, 4x", 0.0, cases))
    for acceleration in (4, 5):
        families: dict[str, Callable[[int], Mask]] = {
            "gaussian": partial(cartesian_mask, ratio=1 / acceleration),
            "equispaced": partial(equispaced_mask, acceleration=acceleration),
        }
        for family, mask in families.items():
            title = f"13-coil brain, {family} {acceleration}x"
            cases = partial(multi_coil, DATA / "multicoil_brain.h5", mask)
            found.append(Collection(f"brain13-{family}-{acceleration}x", title, 1.0, cases))
    for name in ("brain", "prostate", "cardiac", "knee", "natural"):
        cases = partial(domain, name, "scanner", "test", 8)
        found.append(Collection(f"scanner-{name}", f"{name}, simulated scanner, 20 %", 2.0, cases))
    for snr in (10, 20, 30, 40):
        cases = partial(domain, "brain", "single-coil", "val", 4, snr)
        title = f"brain, simulated, one coil, SNR {snr} dB, 20 %"
        found.append(Collection(f"noise-{snr}", title, 0.0, cases, NOISY_WEIGHTS if snr < 30 else WEIGHTS))
    return found


def _whole(group: str, y: Tensor, physics: Physics, reference: Tensor) -> Case:
    return Case(group, y, physics, reference, torch.ones(reference.shape[-2:], dtype=torch.bool))


def _spread(n: int, largest: int) -> list[int]:
    return [int(i) for i in np.linspace(0, n - 1, min(n, largest)).round()]


# The methods


def bart(case: Case, options: str, weight: float) -> Tensor:
    """Return the reconstruction of ``bart pics`` with the maps of the case; the weight is relative to the peak."""
    kspace = case.y[0] if isinstance(case.physics, MultiCoilMRI) else case.y
    maps = case.physics.maps if isinstance(case.physics, MultiCoilMRI) else torch.ones_like(kspace)
    maps = maps.reshape(kspace.shape)
    peak = float(case.physics.A_adjoint(case.y).abs().max())
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("kspace", kspace), ("maps", maps)):
            _write_cfl(Path(folder) / name, array.permute(1, 2, 0)[:, :, None].numpy())
        command = f"bart pics -w1 -S {options}{weight * peak:.6g} kspace maps out"
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        subprocess.run(command.split(), cwd=folder, env=environment, check=True, capture_output=True)
        out = np.fromfile(Path(folder) / "out.cfl", dtype=np.complex64)
    return torch.from_numpy(out.reshape(case.reference.shape[-2:], order="F"))[None]


def _write_cfl(path: Path, array: np.ndarray[Any, np.dtype[np.complex64]]) -> None:
    path.with_suffix(".hdr").write_text("# Dimensions\n" + " ".join(map(str, array.shape)) + "\n")
    array.astype(np.complex64).ravel(order="F").tofile(path.with_suffix(".cfl"))


def reconstruction(name: str, case: Case, weight: float) -> Tensor:
    """Reconstruct a case by a classical method."""
    if name in BART:
        return bart(case, BART[name], weight)
    methods: dict[str, Method] = {"TV": TotalVariation(weight=weight), "wavelet": Wavelet(weight=weight)}
    return methods.get(name, ZeroFilled())(case.y, case.physics)


def classical(collection: Collection, cases: Sequence[Case]) -> dict[str, Any]:
    """Score all classical methods, each at the weight that is best on at most `CHOOSING` of the cases."""
    began, results = time.perf_counter(), {}
    for name in METHODS:
        if name in BART and shutil.which("bart") is None:
            print(f"{name} is left out: BART is not installed")
            continue
        if name == "zero-filling":
            results[name] = _columns([_scored(reconstruction(name, case, 0.0), case) for case in cases])
            continue
        weights = asked_weights(name, collection.weights)
        chosen = cases[:: max(2, math.ceil(len(cases) / CHOOSING))]
        known: dict[tuple[int, float], Score] = {}

        def scored(case: Case, weight: float, method: str = name, known: dict[Any, Score] = known) -> Score:
            key = id(case), weight
            if key not in known:
                known[key] = _scored(reconstruction(method, case, weight), case)
            return known[key]

        def quality(weight: float, scored: Callable[..., Score] = scored, chosen: Sequence[Case] = chosen) -> float:
            return _mean([scored(case, weight)[0] for case in chosen])

        best, tried = climb(weights, quality)
        found = {"weight": best, "mean_psnr": {str(w): round(p, 3) for w, p in tried.items()}}
        results[name] = _columns([scored(case, best) for case in cases]) | found
    seconds = round(time.perf_counter() - began)
    return {
        "asked": asked(collection),
        "groups": [case.group for case in cases],
        "seconds": seconds,
        "methods": results,
    }


def asked_weights(method: str, weights: Sequence[float]) -> Sequence[float]:
    """Return the grid of a method: BART, which is slow, does without both ends."""
    return weights[1:-1] if method in BART else weights


def asked(collection: Collection) -> dict[str, Any]:
    """Return what a cached result must have been made with."""
    return {"weights": list(collection.weights), "tv": TotalVariation().iterations, "bart": list(BART.values())}


def _scored(x: Tensor, case: Case) -> Score:
    return score(x[0].abs(), case.reference[0].abs(), case.support)


def _columns(scores: Sequence[Score]) -> dict[str, Any]:
    return {"psnr": [round(p, 3) for p, _ in scores], "ssim": [round(s, 4) for _, s in scores]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def calibrated(model: ULDA, cases: Sequence[Case]) -> tuple[Learned, float]:
    """Return the base with the strength that it chooses on some of the cases, and the strength."""
    model = copy.deepcopy(model)
    some = [cases[i] for i in _spread(len(cases), SLICES)]
    strength = model.calibrate(UNADAPTED, [(case.y, case.physics) for case in some])
    return Learned(model, UNADAPTED), strength


def unadapted(model: ULDA, cases: Sequence[Case]) -> dict[str, Any]:
    """Score the un-adapted base, and say what it would have with the strength of the training."""
    as_trained = Learned(model, UNADAPTED)
    learned, strength = calibrated(model, cases)
    scores = [_scored(learned(case.y, case.physics), case) for case in cases]
    plain = scores if strength == 1 else [_scored(as_trained(case.y, case.physics), case) for case in cases]
    found = {"strength": strength, "psnr_as_trained": round(_mean([psnr for psnr, _ in plain]), 3)}
    return found | _columns(scores)


# The page


def table(names: Sequence[str], classical_results: dict[str, Any], base_results: dict[str, Any], by_group: bool) -> str:
    """Return a Markdown table: a row for each set, or for each of its groups; PSNR / SSIM, margin and bar."""
    bars = {collection.name: collection for collection in collections()}
    rows = [["set", *METHODS.values(), "base, un-adapted", "margin", "bar", "met"], ["---"] * (len(METHODS) + 5)]
    for name in names:
        if name not in classical_results:
            continue
        found, base = classical_results[name], base_results.get(name)
        groups = sorted(set(found["groups"])) if by_group else [None]
        for group in groups:
            keep = [i for i, g in enumerate(found["groups"]) if group is None or g == group]
            methods = {m: _only(values, keep) for m, values in found["methods"].items()}
            ours = None if base is None else _only(base, keep)
            compared = summary(methods, ours, bars[name].bar)
            cells = [_cell(methods.get(m), bold=m == compared["best"]) for m in METHODS]
            margin = "-" if compared["margin"] is None else f"{compared['margin']:+.2f} dB"
            met = {None: "-", True: "yes", False: "**no**"}[compared["met"]]
            title = bars[name].title + (f", {group}" if group else "")
            rows.append([title, *cells, _cell(ours), margin, f"{bars[name].bar:+.1f} dB", met])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def weights_table(names: Sequence[str], classical_results: dict[str, Any], base_results: dict[str, Any]) -> str:
    """Return the chosen weights as a Markdown table; a star marks the end of a grid."""
    chosen = [m for m in METHODS if m != "zero-filling"]
    rows = [["set", *(METHODS[m] for m in chosen), "strength of the base", "PSNR of the base with strength 1"]]
    rows.append(["---"] * len(rows[0]))
    for name in names:
        if name in classical_results:
            cells = []
            for method in chosen:
                found = classical_results[name]["methods"].get(method)
                grid = asked_weights(method, classical_results[name]["asked"]["weights"])
                cells.append(
                    "-" if not found else f"{found['weight']:g}{'*' * (found['weight'] in (grid[0], grid[-1]))}"
                )
            base = base_results.get(name)
            cells += ["-", "-"] if base is None else [f"{base['strength']:g}", f"{base['psnr_as_trained']:.2f}"]
            rows.append([name, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdict(names: Sequence[str], classical_results: dict[str, Any], base_results: dict[str, Any]) -> str:
    """Say plainly where the base loses and which bars it misses."""
    losses, missed, met = [], [], 0
    for collection in collections():
        name = collection.name
        if name not in names or name not in classical_results or name not in base_results:
            continue
        compared = summary(classical_results[name]["methods"], base_results[name], collection.bar)
        met += compared["met"]
        if compared["margin"] < 0:
            losses.append(f"{collection.title} ({compared['margin']:+.2f} dB against {METHODS[compared['best']]})")
        if not compared["met"]:
            missed.append(f"{collection.title} (by {collection.bar - compared['margin']:.2f} dB)")
    if not met and not missed:
        return "The base has not been measured yet."
    lines = [f"The base meets {met} of {met + len(missed)} bars."]
    lines += [f"It loses to the best classical method on: {'; '.join(losses)}."] if losses else []
    lines += [f"It misses the bar on: {'; '.join(missed)}."] if missed else []
    return "\n\n".join(lines)


def write_page(classical_results: dict[str, Any], base_results: dict[str, Any]) -> None:
    """Write all tables into the page."""
    names = [collection.name for collection in collections()]
    parts = {
        "verdict": verdict(names, classical_results, base_results),
        "weights": weights_table(names, classical_results, base_results),
    }
    prefixes = {"brain13": "brain13-", "multicoil": "multicoil-", "complex": "complex-", "scanner": "scanner-"}
    for mark, prefix in (prefixes | {"noise": "noise-", "lowfield": "lowfield-", "patients": "lowfield-"}).items():
        chosen = [name for name in names if name.startswith(prefix)]
        parts[mark] = table(chosen, classical_results, base_results, mark == "patients")
    for mark, body in parts.items():
        write_between(PAGE, f"<!-- {mark} -->", "<!-- end -->", f"\n{body}\n")


def _only(values: dict[str, Any], keep: Sequence[int]) -> dict[str, Any]:
    return {key: [values[key][i] for i in keep] for key in ("psnr", "ssim")}


def _cell(values: dict[str, Any] | None, *, bold: bool = False) -> str:
    if values is None:
        return "-"
    text = f"{_mean(values['psnr']):.2f} / {_mean(values['ssim']):.3f}"
    return f"**{text}**" if bold else text


# Pictures


def pictures(classical_results: dict[str, Any], model: ULDA | None) -> None:
    """Draw one slice of the 13-coil brain and one of low-field by every method, side by side, with the errors."""
    for name, file in (("brain13-gaussian-4x", "brain13"), ("lowfield-3x", "lowfield")):
        collection = next(c for c in collections() if c.name == name)
        if name not in classical_results:
            continue
        cases = list(collection.cases())
        case = cases[0]
        found = {"reference": case.reference}
        for method, values in classical_results[name]["methods"].items():
            found[method] = reconstruction(method, case, values.get("weight", 0.0))
        if model is not None:
            found["base"] = calibrated(model, cases)[0](case.y, case.physics)
        peak = float(case.reference.abs()[0][case.support].max())
        panels = [_panel(x[0].abs() / peak, label, case) for label, x in found.items()]
        _save(FIGURES / f"real-kspace-{file}.png", np.concatenate(panels, axis=1))


def _panel(image: Tensor, label: str, case: Case) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rows, columns = (case.support.any(dim).nonzero().flatten() for dim in (1, 0))
    cut = (slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1))
    pixels = ((image * case.support).clamp(0, 1)[cut] * 63).round().numpy().astype(np.uint8) * 4  # small files
    picture = Image.fromarray(np.pad(pixels, ((14, 0), (0, 2))))
    ImageDraw.Draw(picture).text((2, 1), label, fill=255)
    return np.asarray(picture)


def _save(path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    Image.fromarray(pixels).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


# The run


def _read(name: str) -> dict[str, Any]:
    path = RESULTS / name
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _write(name: str, results: dict[str, Any]) -> None:
    ordered = {c.name: results[c.name] for c in collections() if c.name in results}
    (RESULTS / name).write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def fingerprint_of(folder: str | Path) -> str:
    """Return the SHA-256 of the files of a base."""
    sha = hashlib.sha256()
    for name in ("model.json", "model.safetensors"):
        sha.update((model_folder(folder, "base") / name).read_bytes())
    return sha.hexdigest()


def run(chosen: Sequence[Collection], base: str | Path | None, *, quick: bool) -> None:
    """Compute what is missing, print each set, and write it unless it is a quick one."""
    found, of_base = _read(CLASSICAL), _read(BASE)
    model = None if base is None else load(base)
    fingerprint = None if base is None else fingerprint_of(base)
    for collection in chosen:
        name = collection.name
        if quick:
            weights = collection.weights[1:4]
            collection = replace(collection, weights=weights)
            found.pop(name, None)
            of_base.pop(name, None)
        has_classical = name in found and found[name]["asked"] == asked(collection)
        has_base = model is None or of_base.get(name, {}).get("base") == fingerprint
        if has_classical and has_base:
            continue
        cases = list(collection.cases())[: 1 if quick else None]
        if not has_classical:
            found[name] = classical(collection, cases)
        if model is not None and not has_base:
            of_base[name] = {"base": fingerprint, **unadapted(model, cases)}
        print(table([name], found, of_base, by_group=False), flush=True)
        if not quick:
            _write(CLASSICAL, found)
            _write(BASE, of_base)
    if not quick:
        # rows of another base are not shown
        write_page(found, {k: v for k, v in of_base.items() if fingerprint in (None, v["base"])})
        pictures(found, model)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the sets that are asked for."""
    parser = argparse.ArgumentParser(description="The un-adapted base against classical methods on scanner data.")
    parser.add_argument("--base", default="base", help="a bundled name or the folder of a base")
    parser.add_argument("--without-base", action="store_true", help="compute the classical methods alone")
    parser.add_argument("--sets", nargs="*", default=[""], help="names of sets, or how they begin")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one slice and three weights of each set; writes nothing")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    chosen = [c for c in collections() if c.name.startswith(tuple(options.sets))]
    run(chosen, None if options.without_base else options.base, quick=options.quick)


if __name__ == "__main__":
    main()
