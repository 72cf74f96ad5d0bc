from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.small_models import small_model
from ulda.data import Domain, demo
from ulda.errors import UldaError
from ulda.evaluation.assessment import assess
from ulda.evaluation.folder import check_folder, evaluation_output, pictured_slices
from ulda.evaluation.report import report_of_assessment, save_comparison
from ulda.physics import cartesian_mask


def evaluate(out: Path, domain: Domain, *, overwrite: bool = False) -> None:
    mask = cartesian_mask(domain.shape[domain.header.phase_axis], 0.3, seed=1)
    with evaluation_output(out, domain, overwrite=overwrite) as writer:
        found = assess(
            small_model("a", domain="b"),
            domain,
            mask,
            keep=tuple(writer.pictures),
            observe=writer.store.observe,
        )
        writer.save(found, ("a note",), {})
        writer.save_text("evaluation.json", "{}\n")


def contents(path: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return found


@pytest.mark.parametrize("name", ["knee", "brain-multicoil"])
def test_images_written_on_the_way_are_those_of_a_comparison_in_memory(tmp_path: Path, name: str) -> None:
    domain = demo(name)
    domain = domain.take(range(min(5, len(domain))))
    evaluate(tmp_path / "out", domain)
    mask = cartesian_mask(domain.shape[domain.header.phase_axis], 0.3, seed=1)
    report = report_of_assessment(assess(small_model("a", domain="b"), domain, mask), domain, notes=("a note",))
    save_comparison(tmp_path / "whole.h5", report)
    found, expected = contents(tmp_path / "out" / "comparison.h5"), contents(tmp_path / "whole.h5")
    assert set(found) == set(expected)
    assert ("kspace" in found) == (name == "brain-multicoil")
    for key, values in expected.items():
        assert np.array_equal(np.asarray(found[key]), np.asarray(values), equal_nan=True), key


def test_another_evaluation_leaves_no_picture_of_the_one_before(tmp_path: Path) -> None:
    out, knee = tmp_path / "out", demo("knee")
    evaluate(out, knee.take(range(9)))
    assert (out / "slice-008.png").exists()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UldaError, match="not empty"):
        evaluate(out, knee.take(range(3)))
    evaluate(out, knee.take(range(3)), overwrite=True)
    pictures = [f"slice-{index:03}.png" for index in pictured_slices(3)]
    texts = ["comparison.h5", "evaluation.json", "notes.txt", "scores.csv"]
    assert sorted(path.name for path in out.iterdir()) == sorted([*texts, *pictures])


def test_what_a_kill_left_is_no_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    check_folder(tmp_path)
    (tmp_path / ".evaluation.new").mkdir()
    (tmp_path / ".evaluation.new" / "scores.csv").touch()
    with pytest.raises(UldaError, match="not empty"):
        check_folder(tmp_path)
    assert (tmp_path / "scores.csv").exists()
