"""`ulda demo`: see the package at work on real, embedded data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ulda.cli.output import JsonOption, print_json, print_table, progress_bar, to_json


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for pictures and numbers.")] = Path(
        "demo-output"
    ),
    ratio: Annotated[float, typer.Option(help="The fraction of lines that is kept.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling mask.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Undersample the embedded knee, reconstruct it, compare, and write pictures."""
    with progress_bar("loading") as advance:
        from ulda.baselines import TotalVariation, Wavelet, ZeroFilled
        from ulda.data import demo as demo_domain
        from ulda.data.atomic import atomic_output
        from ulda.evaluation import compare, save_panel
        from ulda.physics import cartesian_mask

        knee = demo_domain("knee")
        mask = cartesian_mask(knee.shape[knee.header.phase_axis], ratio, seed=seed)
        methods = {"zero-filling": ZeroFilled(), "TV": TotalVariation(), "wavelet": Wavelet()}
        start = time.perf_counter()
        comparison = compare(methods, knee, mask, progress=advance)
    seconds = time.perf_counter() - start
    out.mkdir(parents=True, exist_ok=True)
    for index in range(0, len(knee), 6):
        save_panel(comparison, index, out / f"knee-{index:02}.png")
    result = {"domain": knee.name, "licence": knee.header.licence, "seconds": seconds} | comparison.as_dict()
    with atomic_output(out / "demo.json", overwrite=True) as temporary:
        temporary.write_text(to_json(result) + "\n", encoding="utf-8")
    if as_json:
        print_json(result)
        return
    rows = [
        [
            row["method"],
            f"{row['psnr']:.2f} ± {row['psnr_std']:.2f}",
            f"{row['ssim']:.4f} ± {row['ssim_std']:.4f}",
        ]
        for row in comparison.summary()
    ]
    title = f"{len(knee)} knee slices, {mask.n_sampled} of {mask.n_lines} lines, simulated k-space"
    print_table(title, ["method", "PSNR (dB)", "SSIM"], rows)
    typer.echo(f"per slice, peak 1; mean ± standard deviation; {seconds:.1f} s; pictures and numbers in {out}")
