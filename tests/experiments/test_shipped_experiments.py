"""The experiments that come with the package: what they have in common, and that all of it can be built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.shared_data import SHARED_DATA
from ulda.experiments import experiment_names, load_experiment
from ulda.experiments.measures import check_measurable
from ulda.experiments.recipes import settings_of, sizes_of
from ulda.experiments.runs import Run, runs_of
from ulda.experiments.tables import rows_of
from ulda.methods import method_class
from ulda.methods.listing import check_sizes
from ulda.methods.runs import check_phases
from ulda.training.presets import load_preset

ABLATIONS = [name for name in experiment_names() if name.startswith("ablation-")]
COMPARISONS = ["cross-anatomy", "cross-modality", "cross-sampling-ratio"]
TABLES = {
    "cross-anatomy": ("tab:MRI-anatomy", ("brain", "knee"), ("cardiac", "prostate")),
    "cross-sampling-ratio": ("tab:MRI-sampling", ("brain-10", "brain-20", "brain-30"), ("brain-15", "brain-25")),
    "cross-modality": ("tab:nature-to-mri", ("ImageNet", "CIFAR-10"), ("fastMRI", "Stanford2D")),
}
"""The labels of the paper's tables, and their columns."""


@pytest.mark.parametrize("name", experiment_names())
def test_every_variant_can_be_built_and_trained(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    for variant in (one for one in experiment.variants if one.is_learned):
        check_measurable(variant, method_class(variant.method))
        check_sizes(variant.method, variant.sizes, variant.preset)
        sizes = sizes_of(variant)
        for scale in experiment.scales.values():
            for run in (Run("train", variant.name), Run("adapt", variant.name, size=scale.sizes[0])):
                settings = settings_of(variant, scale, run)
                check_phases(settings, sizes)
                # without an acceptance test in the reconstruction there must be none in the training
                assert sizes.get("safeguard", True) or settings.penalty_weight == 0
                # a training ends with all phases
                assert run.kind == "adapt" or "phases" not in sizes or settings.phases[-1] == sizes["phases"]


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_covers_the_field(name: str) -> None:
    experiment = load_experiment(name)
    assert set(experiment.scales) == {"bench", "paper"}
    methods = {variant.name for variant in experiment.variants}
    assert methods >= {"ulda", "ulda-paper", "lda", "dncn", "unet", "umri", "meta", "humus"}
    assert methods >= {"zero-filling", "TV", "wavelet"}
    for scale in experiment.scales.values():
        keys = [run.key for run in runs_of(experiment, scale)]
        assert len(keys) == len(set(keys))


def test_the_larger_comparison_is_the_smaller_one_at_another_size() -> None:
    small, large = load_experiment("cross-anatomy"), load_experiment("cross-anatomy-128")
    assert (large.sources, large.targets) == (small.sources, small.targets)
    assert all(variant == small.variant(variant.name) for variant in large.variants)
    assert all(small.paper[method] == printed for method, printed in large.paper.items())
    (few, many) = small.scale("bench"), large.scale("bench")
    assert (many.side, many.steps) == (2 * few.side, few.steps)
    assert many.adapt_steps.items() <= few.adapt_steps.items()


def test_what_the_ablations_have_in_common_is_run_once() -> None:
    """They keep their runs in one folder, so whatever has the same name must be the same."""
    found = [load_experiment(name) for name in ABLATIONS]
    assert {one.family for one in found} == {"ablations"}
    for one in found:
        assert set(one.scales) == {"bench", "paper"}
        # trainings are what costs
        assert sum(run.kind == "train" for run in runs_of(one, one.scale("bench"))) <= 8
        assert (one.sources, one.targets) == (found[0].sources, found[0].targets)
        for name, scale in one.scales.items():
            # only the components are adapted with more slices at the scale of a CPU
            sizes = {5, 40} if (one.name, name) == ("ablation-components", "bench") else {5}
            assert name == "paper" or set(scale.sizes) == sizes
            alike = found[0].scale(name).adapt_steps.items() & scale.adapt_steps.items()
            assert 5 in dict(alike)
            same = scale.model_copy(update={"adapt_steps": found[0].scale(name).adapt_steps})
            assert same == found[0].scale(name)
    variants: dict[str, Any] = {}
    for one in found:
        for variant in one.variants:
            assert variants.setdefault(variant.name, variant) == variant
    assert len(variants) < sum(len(one.variants) for one in found) - 5


def test_the_values_that_are_tried() -> None:
    """Each ablation of a number changes it alone, around the value of the preset."""
    paper = load_preset("paper")
    tried: dict[str, list[float]] = {}
    for name in ("ablation-ssim", "ablation-delta", "ablation-phases"):
        experiment = load_experiment(name)
        variants = [variant for variant in experiment.variants if variant.method == "ulda-paper"]
        for variant in variants:
            settings = settings_of(variant, experiment.scale("bench"), Run("train", variant.name))
            sizes = sizes_of(variant)
            value = {"ssim": settings.ssim_weight, "delta": sizes["delta"], "phases": sizes["phases"]}
            tried.setdefault(name, []).append(value[name.removeprefix("ablation-")])
    assert tried == {
        "ablation-ssim": [paper.train.ssim_weight, 0.1, 0.001],
        "ablation-delta": [paper.network.delta, 0.1, 0.001, 0.0001],
        "ablation-phases": [paper.network.phases, 3, 7, 11],
    }
    assert all(len(set(values)) == len(values) for values in tried.values())


def test_components_are_added_one_by_one() -> None:
    """The rows of the paper's table: LDA, which is its row without adapters, then adapter, initialisation, AUG."""
    experiment = load_experiment("ablation-components")
    rows = []
    for variant in experiment.variants:
        sizes = sizes_of(variant)
        settings = settings_of(variant, experiment.scale("bench"), Run("adapt", variant.name, size=5))
        added = sizes.get("initialise", 0) > 0, settings.augment, sizes.get("rank", 0) > 0, settings.warp > 0
        rows.append((variant.name, *added, variant.trained_as))
    # step 0, AUG, a low-rank update of g, warps; what differs in the adaptation alone is trained once
    assert rows == [
        ("lda", False, True, False, False, ""),
        ("adapters", False, False, False, False, ""),
        ("init", True, False, False, False, "ulda-paper"),
        ("ulda-paper", True, True, False, False, ""),
        ("rank-0", False, False, False, True, "ulda"),
        ("no-warp", False, False, True, False, "ulda"),
        ("ulda", False, False, True, True, ""),
    ]


@pytest.mark.parametrize(
    ("name", "source_slices"), [("cross-anatomy", 400), ("cross-modality", 400), ("cross-sampling-ratio", 300)]
)
def test_the_paper_scale_asks_for_what_the_paper_had(name: str, source_slices: int) -> None:
    experiment = load_experiment(name).at("paper")
    paper = experiment.scale("paper")
    _, sources, targets = TABLES[name]
    ratios = {f"brain-{percent}": percent / 100 for percent in (10, 15, 20, 25, 30)}
    for entries, names in ((experiment.sources, sources), (experiment.targets, targets)):
        assert {entry.name: entry.ratio for entry in entries} == {name: ratios.get(name, 0.2) for name in names}
    assert (paper.side, paper.source_slices, paper.sizes, paper.draws) == (256, source_slices, (5, 40, 100), 5)
    assert (paper.test_slices, paper.single_coil) == (200, True)
    methods = {"ulda-paper", "lda", "dncn", "unet", "umri", "meta", "humus"}
    assert methods <= {variant.name for variant in experiment.variants}
    for printed, domains in ((experiment.paper, targets), (experiment.paper_sources, sources)):
        assert set(printed) == methods
        assert all(set(values) == set(domains) for values in printed.values())


def test_the_ablations_at_the_paper_scale_have_the_sources_and_the_target_of_the_paper() -> None:
    """Its table of components has the numbers of prostate; phases and weights are judged on brain and knee."""
    experiment = load_experiment("ablation-components").at("paper")
    assert [entry.name for entry in experiment.sources] == ["brain", "knee"]
    assert [entry.name for entry in experiment.targets] == ["prostate"]


@pytest.mark.parametrize(
    ("name", "shown", "in_paper"),
    [
        ("cross-anatomy", ["brain", "cardiac"], 4),
        ("cross-modality", [], 4),
        ("cross-sampling-ratio", ["brain-10", "brain-20", "brain-30", "brain-15", "brain-25"], 5),
    ],
)
def test_numbers_of_the_paper_stand_beside_what_has_the_same_part_there(
    name: str, shown: list[str], in_paper: int
) -> None:
    """On a CPU prostate is a source and knee a target, in the paper they are the other way round."""
    experiment = load_experiment(name)
    header, *rows = rows_of(experiment.at("bench"), {}, (5,))
    assert [title for title in header if "the paper" in title] == [f"{domain}, the paper" for domain in shown]
    assert len(rows) == len(experiment.variants)
    assert sum("the paper" in title for title in rows_of(experiment.at("paper"), {}, (5,))[0]) == in_paper


def test_the_numbers_of_the_paper_belong_to_its_preset() -> None:
    header, *rows = rows_of(load_experiment("cross-anatomy").at("bench"), {}, (5,))
    printed = {row[0]: row for row in rows}
    paper = dict(zip(header, printed["U-LDA (paper)"], strict=True))
    assert (paper["brain, the paper"], paper["cardiac, the paper"]) == ("37.88 / 0.958", "37.26 / 0.956")
    assert set(printed["U-LDA"][1:]) == {""}


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_are_those_of_the_paper(name: str) -> None:
    text = SHARED_DATA.parent / "paper" / "ulda.tex"
    if not text.exists():
        pytest.skip("the text of the paper is not on this machine")
    label, sources, targets = TABLES[name]
    printed = printed_table(text, label, (*sources, *targets))
    experiment = load_experiment(name)
    titles = {"DnCn": "dncn", "LDA": "lda", "UNet": "unet", "U-MRI": "umri", "Meta": "meta", "U-LDA": "ulda-paper"}
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
