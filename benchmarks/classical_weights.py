"""Choose the default weights of the classical baselines on validation slices.

Prints the mean PSNR of every setting over brain, prostate and cardiac slices of the validation splits, at
128 px and 20 % sampling with a mask of its own for every slice. The k-space is simulated from magnitudes.

Run ``python -m benchmarks.classical_weights`` (about five minutes on one core).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ulda.methods import Method, TotalVariation, Wavelet, ZeroFilled
from ulda.metrics import evaluate
from ulda.physics import CartesianMRI, cartesian_mask, fourier_resize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

DOMAINS = ("brain", "prostate", "cardiac")
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def validation_slices(path: Path, n_slices: int, size: int = 128) -> Tensor:
    """Return evenly spaced validation slices with peak 1, ``(n_slices, size, size)``."""
    with np.load(path) as domain:
        images = domain["images"][domain["split"] == "val"]
    chosen = images[np.linspace(0, len(images) - 1, n_slices).astype(int)].astype(np.float32)
    resized = fourier_resize(torch.from_numpy(chosen).to(torch.complex64), (size, size)).abs()
    return resized / resized.amax((-2, -1), keepdim=True)


def settings() -> Iterator[tuple[str, Method]]:
    """Yield every method that is tried, with its name in the table."""
    yield "zero-filled", ZeroFilled()
    for weight in (0.0003, 0.001, 0.002, 0.004, 0.008):
        yield f"total variation, {weight}", TotalVariation(weight=weight)
    for weight in (0.0005, 0.001, 0.002, 0.004):
        for levels in (3, 4, 5):
            yield f"haar, {levels} levels, {weight}", Wavelet(weight=weight, wavelet="haar", levels=levels)
        yield f"db2, 4 levels, {weight}", Wavelet(weight=weight, wavelet="db2", levels=4)
        yield f"db4, 4 levels, {weight}", Wavelet(weight=weight, wavelet="db4", levels=4)


def mean_psnr(method: Method, slices: Tensor) -> float:
    """Reconstruct every slice from its own mask and average the PSNR."""
    scores = []
    for seed, reference in enumerate(slices):
        physics = CartesianMRI(cartesian_mask(reference.shape[-2], 0.2, seed=seed))
        x_hat = method(physics.A(reference.to(torch.complex64)), physics)
        scores.append(evaluate(x_hat.abs(), reference).psnr)
    return float(torch.stack(scores).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Choose the default weights of the baselines.")
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="folder of the image domains")
    parser.add_argument("--slices", type=int, default=6, help="slices per domain")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    domains = {name: validation_slices(options.data / f"{name}.npz", options.slices) for name in DOMAINS}
    print(f"PSNR in dB ({evaluate(domains['brain'], domains['brain']).convention.name})")
    print(f"{'setting':28}" + "".join(f"{name:>10}" for name in (*DOMAINS, "mean")))
    for label, method in settings():
        row = [mean_psnr(method, slices) for slices in domains.values()]
        print(f"{label:28}" + "".join(f"{value:10.2f}" for value in (*row, sum(row) / len(row))), flush=True)


if __name__ == "__main__":
    main()
