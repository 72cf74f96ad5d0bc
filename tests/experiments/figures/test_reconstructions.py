"""Example reconstructions, their errors, and where they are enlarged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.experiments.figures.drawn import drawn, title_of
from ulda.experiments.examples import Examples, example_indices, load_examples, save_examples
from ulda.experiments.figures import Results
from ulda.experiments.figures.reconstructions import View, inset_corner, zoom_window
from ulda.experiments.running import Runner
from ulda.experiments.runs import read_runs


def test_reconstructions_and_errors(results: Results, done: Runner) -> None:
    axes = drawn(results, "reconstructions", "reconstructions-hip-2")
    examples = {
        name: load_examples(done.examples_folder / f"{key}.npz")["hip"]
        for name, key in (
            ("zero-filling", "classical-zero-filling-hip"),
            ("ulda", "adapt-ulda-hip-2-0"),
            ("dncn", "adapt-dncn-hip-2-0"),
        )
    }
    n_examples = len(examples["ulda"].indices)
    assert n_examples == len(example_indices(done.data.test(done.experiment.targets[0]).subjects))
    rows = [axes[2 * n_examples * row :][: 2 * n_examples] for row in range(4)]
    # zero-filling has some larger errors, which are saturated
    end = max(np.percentile(np.abs(examples[name].images - examples[name].reference), 99) for name in ("ulda", "dncn"))
    assert end < np.abs(examples["zero-filling"].images - examples["zero-filling"].reference).max()
    assert f"saturated from {end:.3g} on" in axes[-1].get_xlabel()
    assert "99th percentile of the learned method with the largest errors" in axes[-1].get_xlabel()
    assert "white from the\n99th percentile" in axes[1].texts[0].get_text()
    assert "No examples" not in title_of(axes[0])
    for row, one in zip(rows[1:], examples.values(), strict=True):
        for number, (reference, image) in enumerate(zip(one.reference, one.images, strict=True)):
            (shown,), (error,) = (row[2 * number + k].get_images() for k in (0, 1))
            np.testing.assert_array_equal(np.asarray(shown.get_array()), image)
            assert shown.get_clim() == pytest.approx((0, np.percentile(reference, 99)))
            np.testing.assert_array_equal(np.asarray(error.get_array()), np.abs(image - reference))
            assert error.get_clim() == pytest.approx((0, end))
    psnr = results.runs["adapt-dncn-hip-2-0"]["results"]["hip"]["psnr"][examples["dncn"].indices[0]]
    assert rows[3][0].get_xlabel() == f"{psnr:.2f} dB"
    assert [row[0].get_ylabel() for row in rows] == ["reference", "zero-filling", "U-LDA", "DnCn"]


def test_methods_without_pictures_are_named(done: Runner, tmp_path: Path) -> None:
    shutil.copytree(done.examples_folder, tmp_path / "examples")
    (tmp_path / "examples" / "classical-zero-filling-hip.npz").unlink()
    other = load_examples(tmp_path / "examples" / "adapt-dncn-hip-2-0.npz")["hip"]
    # of other slices than U-LDA's
    moved = Examples(other.indices + 1, other.reference, other.images)
    save_examples(tmp_path / "examples" / "adapt-dncn-hip-2-0.npz", "hip", moved)
    results = Results(done.experiment, done.data.scale.sizes, tmp_path, read_runs(done.runs_folder))
    axes = drawn(results, "reconstructions", "reconstructions-hip-2")
    assert title_of(axes[0]).endswith("No examples of zero-filling, DnCn")


def test_the_zoom_shows_detail_and_hides_none() -> None:
    image = np.zeros((40, 60), np.float32)
    # straight, as fat below the skin, and away from the middle
    image[:, 24:] = 0.5
    image[0:8:2, 0:8:2] = 1
    image[20:26:2, 36:42:2] = 1
    row, column, side = window = zoom_window(image)
    assert side == 8
    assert (row, column) == pytest.approx((18, 34), abs=3)
    # the lower right corner hides a part of the window; of the others it is the signal that counts
    assert inset_corner(image, window) == 2
    image[24:, :24] = 0.1
    assert inset_corner(image, window) == 0
    image[:16, 36:] = 0
    image[:16, :24] = 0.6
    assert inset_corner(image, window) == 1


def test_the_zoom_stays_away_from_the_border() -> None:
    generator = np.random.default_rng(0)
    for shape in ((64, 64), (20, 33), (9, 9), (8, 40)):
        row, column, side = zoom_window(generator.random(shape, np.float32))
        for start, length in ((row, shape[0]), (column, shape[1])):
            low = min(round(length / 4), (length - side) // 2)
            assert low <= start <= length - side - low


def test_a_few_bright_pixels_do_not_darken_a_slice() -> None:
    image = np.linspace(0, 0.4, 1600, dtype=np.float32).reshape(40, 40)
    image[0, :5] = 1
    assert View.of(image).white == pytest.approx(np.percentile(image, 99))
    assert View.of(image).white < 0.41
    assert View.of(0 * image).white == 1
