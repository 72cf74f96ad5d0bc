"""An experiment may have other domains at another scale, and numbers of the paper only beside domains of the paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.tiny import TINY

from tests.shared_data import SHARED_DATA
from ulda.errors import UldaError
from ulda.experiments import Experiment, load_experiment
from ulda.experiments.definition import DomainEntry, Scale
from ulda.experiments.runs import runs_of
from ulda.experiments.tables import rows_of

BENCH = TINY["scales"]["bench"]
OTHER: dict[str, Any] = BENCH | {
    "title": "knees to ankles",
    "sources": [{"name": "knee", "ratio": 0.2}, {"name": "hip"}],
    "targets": [{"name": "ankle"}],
}
TABLES = {
    "cross-anatomy": ("tab:MRI-anatomy", ("brain", "knee"), ("cardiac", "prostate")),
    "cross-sampling-ratio": ("tab:MRI-sampling", ("brain-10", "brain-20", "brain-30"), ("brain-15", "brain-25")),
    "cross-modality": ("tab:nature-to-mri", ("ImageNet", "CIFAR-10"), ("fastMRI", "Stanford2D")),
}
"""The labels of the paper's tables, and their columns."""


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


def test_what_a_definition_does_not_say_is_not_written() -> None:
    """The results of a scale name its definition; those of before a key existed must count as of the same one."""
    entry = {"name": "knee", "data": "", "ratio": 0.2, "mask_seed": 0}
    assert DomainEntry(name="knee").model_dump(mode="json") == entry
    assert DomainEntry(name="knee", enlarge=True).model_dump(mode="json") == entry | {"enlarge": True}
    written = Scale.model_validate(BENCH).model_dump(mode="json")
    assert set(written) == {*BENCH, "validation_slices", "source_slices"}
    assert Scale.model_validate(OTHER).model_dump(mode="json")["targets"] == [entry | {"name": "ankle"}]


def test_numbers_of_the_paper_stand_beside_what_has_the_same_part_there() -> None:
    """On a CPU prostate is a source and knee a target, in the paper they are the other way round."""
    for name, shown in (
        ("cross-anatomy", ["brain", "cardiac"]),
        ("cross-modality", []),
        ("cross-sampling-ratio", ["brain-10", "brain-20", "brain-30", "brain-15", "brain-25"]),
    ):
        header, *rows = rows_of(load_experiment(name).at("bench"), {}, (5,))
        assert [title for title in header if "the paper" in title] == [f"{domain}, the paper" for domain in shown]
        assert len(rows) == 10
        paper = rows_of(load_experiment(name).at("paper"), {}, (5,))[0]
        assert sum("the paper" in title for title in paper) == (5 if name == "cross-sampling-ratio" else 4)
    header, *rows = rows_of(load_experiment("cross-anatomy").at("bench"), {}, (5,))
    ours = dict(zip(header, next(row for row in rows if row[0] == "U-LDA"), strict=True))
    assert (ours["brain, the paper"], ours["cardiac, the paper"]) == ("37.88 / 0.958", "37.26 / 0.956")


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_are_those_of_the_paper(name: str) -> None:
    text = SHARED_DATA.parent / "paper" / "ulda.tex"
    if not text.exists():
        pytest.skip("the text of the paper is not on this machine")
    label, sources, targets = TABLES[name]
    printed = printed_table(text, label, (*sources, *targets))
    experiment = load_experiment(name)
    titles = {"DnCn": "dncn", "LDA": "lda", "UNet": "unet", "U-MRI": "umri", "Meta": "meta", "U-LDA": "ulda"}
    for title, method in (titles | {"HUMUS-Net": "humus"}).items():
        assert experiment.paper[method] | experiment.paper_sources[method] == printed[title]


def printed_table(text: Path, label: str, columns: tuple[str, ...]) -> dict[str, dict[str, tuple[float, float]]]:
    """Read a table of the paper: PSNR and SSIM of each column by the name of the method."""
    table = text.read_text(encoding="utf-8").split(f"\\label{{{label}}}")[0].rpartition(r"\begin{tabular}")[2]
    found = {}
    for row in table.split(r"\\"):
        title = re.search(r"(?:^|[\s}])((?:DnCn|LDA|UNet|U-MRI|Meta|HUMUS-Net|U-LDA))\b", row)
        numbers = re.findall(r"\d\d\.\d\d", row.partition("&")[2].replace(" ", ""))
        if title and numbers:
            n = len(columns)
            values = [(float(a), float(b)) for a, b in zip(numbers[:n], numbers[n:], strict=True)]
            found[title[1]] = dict(zip(columns, values, strict=True))
    return found
