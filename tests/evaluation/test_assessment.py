from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.small_models import scale_sources, small_model
from ulda.data import Domain, DomainWriter, Header, Record, demo
from ulda.errors import UldaError
from ulda.evaluation import chosen_weights, compare, paired_difference
from ulda.evaluation.assessment import assess
from ulda.evaluation.unseen import check_unseen
from ulda.methods import TotalVariation
from ulda.methods.ulda import ULDA
from ulda.methods.weights import WEIGHTS
from ulda.physics import Mask, cartesian_mask


def knee(path: Path, subjects: str = "aabbc") -> Domain:
    """Write crops of the embedded knee, with made-up subjects."""
    images = demo("knee").take(range(4, 4 + 3 * len(subjects), 3)).images()
    with DomainWriter(path, Header("crops", "complex")) as writer:
        for image, subject in zip(images, subjects, strict=True):
            writer.append(Record(image[40:88, 40:88].numpy(), subject))
    return Domain.open(path)


def model(weight: float = 1.0) -> ULDA:
    """Return a model with an adapter that is the mean of its sources, which are then multiplied by a weight."""
    network = small_model("a", "b", domain="knee")
    scale_sources(network, weight)
    return network


def test_an_adapter_is_judged_against_the_mean_of_the_sources(tmp_path: Path) -> None:
    domain, mask = knee(tmp_path / "d.h5"), cartesian_mask(48, 0.4, seed=1)
    seen: list[tuple[int, int]] = []
    network = model(30.0)
    found = assess(network, domain, mask, progress=lambda *at: seen.append(at))
    assert network.domains == ("a", "b", "knee")
    assert list(found.comparison.scores) == ["zero-filling", "TV", "wavelet", "un-adapted", "adapted"]
    assert (found.judged, found.rival) == ("adapted", "un-adapted")
    assert seen[-1] == (25, 25)
    scores = {name: s.psnr.numpy() for name, s in found.comparison.scores.items()}
    assert (scores["adapted"] > scores["un-adapted"]).all()
    for other in ("zero-filling", "TV", "wavelet", "un-adapted"):
        difference = found.differences[other]["psnr"]
        assert difference.mean == pytest.approx(np.mean(scores["adapted"] - scores[other]), abs=1e-4)
        assert difference == paired_difference(scores["adapted"], scores[other], list("aabbc"))
    assert found.verdict.startswith("adaptation helped by ")
    assert "on 3 subjects (5 slices); so few subjects" in found.verdict
    assert found.as_dict()["verdict"] == found.verdict
    assert found.as_dict()["differences"]["TV"]["ssim"]["n_slices"] == 5


def test_an_adapter_that_changes_nothing_makes_no_difference(tmp_path: Path) -> None:
    found = assess(model(1.0), knee(tmp_path / "d.h5", "ab"), cartesian_mask(48, 0.4, seed=1))
    assert found.verdict == (
        "no clear difference: 0.00 dB [0.00, 0.00] on 2 subjects (2 slices); "
        "so few subjects make the interval too narrow"
    )


def test_without_an_adapter_the_rival_is_the_best_classical_method(tmp_path: Path) -> None:
    found = assess(small_model("a", domain="unadapted"), knee(tmp_path / "d.h5", "ab"), cartesian_mask(48, 0.4, seed=1))
    assert list(found.comparison.scores) == ["zero-filling", "TV", "wavelet", "un-adapted"]
    means = {row["method"]: row["psnr"] for row in found.comparison.summary()}
    assert found.rival == max(("zero-filling", "TV", "wavelet"), key=lambda name: means[name])
    assert found.verdict.startswith("the learned prior did not help: -")
    assert f"over {found.rival} on 2 subjects" in found.verdict


def test_classical_weights_are_chosen_on_other_slices(tmp_path: Path) -> None:
    """They are the best there, of the grid and its neighbours, and the comparison has them."""
    domain, mask = knee(tmp_path / "d.h5"), cartesian_mask(48, 0.4, seed=1)
    test, others = domain.take([0]), domain.take([1, 2, 3, 4])
    found = assess(small_model("a", domain="unadapted"), test, mask, tuning=others)
    assert found.as_dict()["weights"] == found.weights == chosen_weights(others, mask)

    assert quality(found.weights["TV"], 0, test, mask) == float(found.comparison.scores["TV"].psnr.mean())

    def mean(weight: float) -> float:
        return sum(quality(weight, 1 + i, others.take([i]), mask) for i in range(len(others)))

    place = WEIGHTS.index(found.weights["TV"])
    best = mean(found.weights["TV"])
    assert all(mean(WEIGHTS[i]) <= best for i in (place - 1, place + 1) if 0 <= i < len(WEIGHTS))


def quality(weight: float, seed: int, of: Domain, mask: Mask) -> float:
    """Return the mean PSNR of TV."""
    return float(compare({"TV": TotalVariation(weight=weight)}, of, mask, seed=seed).scores["TV"].psnr.mean())


def test_scores_per_slice(tmp_path: Path) -> None:
    found = assess(model(), knee(tmp_path / "d.h5", "ab"), cartesian_mask(48, 0.4, seed=1))
    found.save_scores(tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 10
    chosen = [row for row in rows if row["method"] == "TV"]
    assert [row["subject"] for row in chosen] == ["a", "b"]
    assert [float(row["ssim"]) for row in chosen] == pytest.approx(found.comparison.scores["TV"].ssim.tolist())


def test_slices_of_the_training_are_refused(tmp_path: Path) -> None:
    domain = knee(tmp_path / "d.h5", "abc")
    unseen: dict[str, Any] = {"subjects": ["x"], "data": "0", "validation": {"subjects": ["y"]}}
    assert check_unseen(domain, {}, unseen) == []
    assert check_unseen(domain, {"card": {"data": [{"fingerprint": "0"}]}}) == []
    with pytest.raises(UldaError, match="trained on the subject a and on 1 more of these subjects"):
        check_unseen(domain, {}, unseen | {"subjects": ["a", "c", "d"]})
    with pytest.raises(UldaError, match="exactly these slices"):
        check_unseen(domain, {}, unseen | {"data": domain.fingerprint()})
    with pytest.raises(UldaError, match="exactly these slices"):
        check_unseen(domain, {"card": {"data": [{"fingerprint": domain.fingerprint()}]}})
    (note,) = check_unseen(domain, {}, unseen | {"validation": {"subjects": ["b"]}})
    assert "chosen by its scores on 1 of these subjects (b is one)" in note
    (note,) = check_unseen(domain, {}, {})
    assert "does not say whom it was trained on" in note


@pytest.mark.parametrize("odd", [None, 3, "a", [1], {"data": {"a": 1}}, {"data": ["a", None]}])
def test_facts_of_any_form(odd: object, tmp_path: Path) -> None:
    domain = knee(tmp_path / "d.h5", "a")
    assert check_unseen(domain, {"card": odd}, {"subjects": [], "validation": odd, "data": odd}) == []
