"""An experiment may have other domains at another scale."""

from __future__ import annotations

from typing import Any

import pytest

from tests.experiments.tiny import BENCH, TINY
from ulda.errors import UldaError
from ulda.experiments import Experiment
from ulda.experiments.runs import runs_of

OTHER: dict[str, Any] = BENCH | {
    "title": "knees to ankles",
    "sources": [{"name": "knee", "ratio": 0.2}, {"name": "hip"}],
    "targets": [{"name": "ankle"}],
}


def test_a_scale_may_have_its_own_domains() -> None:
    experiment = Experiment.model_validate(TINY | {"scales": {"bench": BENCH, "paper": OTHER}})
    bench, paper = experiment.at("bench"), experiment.at("paper")
    assert (bench.title, bench.sources, bench.targets) == (experiment.title, experiment.sources, experiment.targets)
    assert paper.title == "knees to ankles"
    assert [entry.name for entry in paper.sources] == ["knee", "hip"]
    assert paper.domain("knee").ratio == 0.2
    with pytest.raises(UldaError, match="no domain 'toe'; it has: knee, hip, ankle"):
        paper.domain("toe")
    keys = {run.key for run in runs_of(paper, paper.scale("paper"))}
    assert "classical-zero-filling-ankle" in keys
    assert not any("adapt-ulda-hip" in key for key in keys)


def test_an_experiment_at_a_scale_has_no_other_scale() -> None:
    """Else its domains could be those of one scale and its sizes those of another."""
    paper = Experiment.model_validate(TINY | {"scales": {"bench": BENCH, "paper": OTHER}}).at("paper")
    assert paper.at("paper") == paper
    with pytest.raises(UldaError, match="no scale 'bench'; it has: paper"):
        paper.at("bench")


def test_domains_of_a_scale_have_different_names() -> None:
    twice = OTHER | {"targets": [{"name": "hip"}]}
    with pytest.raises(ValueError, match="two domains have the name hip"):
        Experiment.model_validate(TINY | {"scales": {"bench": BENCH, "paper": twice}})
