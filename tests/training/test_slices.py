from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.small_domains import write_domain
from ulda.data import demo
from ulda.errors import UldaError
from ulda.training.slices import choose_slices, normalised_images, opened, split_for_training


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.data(), st.integers(0, 5))
def test_slices_are_spread_over_the_subjects(subjects: list[str], data: st.DataObject, seed: int) -> None:
    n = data.draw(st.integers(1, len(subjects)))
    chosen = choose_slices(subjects, n, seed)
    assert len(set(chosen)) == n
    assert chosen == choose_slices(subjects, n, seed)
    counts = {subject: sum(subjects[i] == subject for i in chosen) for subject in set(subjects)}
    # only a subject that has no more slices may give fewer than another one
    for subject, count in counts.items():
        assert count == subjects.count(subject) or count >= max(counts.values()) - 1


def test_slices_of_one_subject_lie_apart_and_depend_on_the_seed() -> None:
    draws = {tuple(choose_slices(["a"] * 12, 3, seed)) for seed in range(10)}
    assert len(draws) > 1
    assert all(i < 4 <= j < 8 <= k for i, j, k in draws)
    with pytest.raises(UldaError, match="5 slices were asked for, but there are 2"):
        choose_slices(["a", "a"], 5)


def test_labels_decide_where_there_are_any() -> None:
    split = split_for_training(demo("knee"))
    assert set(split.train.label("split")) == {"train"}
    assert set(split.validation.label("split")) == {"val"}
    with pytest.raises(UldaError, match="no slices in the split train"):
        split_for_training(demo("knee").select(split="test"))


def test_subjects_are_held_out_where_there_are_no_labels(tmp_path: Path) -> None:
    with opened(write_domain(tmp_path / "kidney.npz", "kidney", n_subjects=4)) as kidney:
        split = split_for_training(kidney)
        assert len(split.train) + len(split.validation) == len(kidney)
        assert set(split.train.subjects).isdisjoint(split.validation.subjects)
        assert len(set(split.validation.subjects)) == 1
    alone = split_for_training(demo("kidney"))
    assert len(alone.validation) == 0
    assert "one subject" in alone.origin


def test_an_empty_slice_is_named() -> None:
    images = torch.ones(3, 8, 8, dtype=torch.complex64)
    images[1] = 0

    class Empty:
        name, n_coils = "knee", 1

        def check_references(self, consequence: str) -> None:
            """Find nothing: the slices are images."""

        def images(self) -> list[torch.Tensor]:
            return list(images)

    with pytest.raises(UldaError, match="slice 1 of the domain knee is empty or not finite"):
        normalised_images(Empty())  # type: ignore[arg-type]


def test_images_peak_at_one(tmp_path: Path) -> None:
    with opened(write_domain(tmp_path / "knee.npz"), size=(24, 24)) as knee:
        images = normalised_images(knee)
    assert images.shape == (24, 24, 24)
    assert torch.allclose(images.abs().amax((-2, -1)), torch.ones(24))
