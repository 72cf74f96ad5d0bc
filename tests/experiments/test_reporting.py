from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.report_examples import HOSTILE, embedded
from tests.evaluation.test_report import same
from tests.experiments.report_examples import (
    HOSTILE_NAME,
    INDICES,
    MASK,
    PHASES,
    REFERENCE,
    SIDE,
    SUBJECTS,
    add_data,
    add_run,
    experiment_folder,
    hostile_folder,
    levels,
    packed_file,
    psnr_of,
)
from ulda.errors import UldaError
from ulda.evaluation.paired import paired_difference
from ulda.evaluation.report import Report, load_comparison, render, save_comparison
from ulda.experiments.reporting import read_report
from ulda.experiments.runs import Run
from ulda.io.fingerprints import fingerprint
from ulda.physics import cartesian_mask
from ulda.training.slices import choose_slices


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return experiment_folder(tmp_path_factory.mktemp("experiment"))


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_file(folder, tmp_path_factory.mktemp("packed") / "results.json")


def test_all_methods_on_a_target(folder: Path) -> None:
    report = read_report(folder)
    assert report.title == "one of my own: cardiac, adapted with 5 slices"
    assert report.description == f"6 test slices of 3 subjects, {MASK.n_sampled} of {SIDE} lines, simulated k-space"
    assert report.methods == ("TV", "DnCn", "Meta", "U-LDA")
    assert [one.subject for one in report.slices] == [*SUBJECTS]
    assert {one.mask for one in report.slices} == {MASK}
    # scores of all slices, images of the examples
    for title, seed in (("TV", 4), ("DnCn", 2), ("Meta", 3), ("U-LDA", 1)):
        assert report.scores[title]["psnr"].tolist() == psnr_of(seed)
    assert report.shown == INDICES
    assert list(report.images) == ["TV", "Meta", "U-LDA"]
    assert np.array_equal(report.all_images()[""], REFERENCE)
    for title, seed in (("TV", 4), ("Meta", 3), ("U-LDA", 1)):
        assert np.array_equal(report.images[title], levels(seed))
    assert report.notes == (
        "3 example slices of 6 have images; the scores are of all test slices",
        "in the tables alone, since without example images: DnCn",
        "all is of draw 1 of 2 of the target slices, and ± is over test slices; ulda experiment table has the means "
        "over the draws, where ± is over draws: there are several of DnCn",
    )


def test_the_verdict_is_against_the_best_other_method(folder: Path) -> None:
    report = read_report(folder)
    means = {name: float(np.mean(scores["psnr"])) for name, scores in report.scores.items() if name != "U-LDA"}
    best = max(means, key=lambda name: means[name])
    expected = paired_difference(report.scores["U-LDA"]["psnr"], report.scores[best]["psnr"], SUBJECTS)
    assert report.judged == "U-LDA"
    assert expected.high < 0
    assert report.verdict == (
        f"U-LDA is behind {best}, the best other method, by {-expected.mean:.2f} dB "
        f"(difference [{expected.low:+.2f}, {expected.high:+.2f}]) on 3 subjects (6 slices)"
    )


def test_the_page_has_pictures_of_the_examples_alone(folder: Path) -> None:
    page = embedded(render([read_report(folder)]))["sources"][0]
    assert [picture is not None for picture in page["pictures"]] == [i in INDICES for i in range(6)]
    assert page["planes"] == [None, 0, 2, 3]
    assert len(page["scores"][1]["psnr"]) == len(page["slices"]) == 6


def test_traces_of_examples(folder: Path) -> None:
    report = read_report(folder)
    assert list(report.traces) == ["Meta", "U-LDA"]
    assert report.phases == {"Meta": PHASES, "U-LDA": PHASES}
    assert [len(steps) for steps in report.traces["U-LDA"]] == [3, 2, 3]
    first = report.traces["U-LDA"][0]
    assert [step.phi for step in first] == [7.0, 6.0, 5.0]
    branches = [[step.branch for step in steps] for steps in report.traces["U-LDA"]]
    assert branches == [["u", "v", "u"], ["v", "v"], ["stalled", "u", "u"]]
    # with another smoothing the objective before the step is not on record
    assert [step.phi_before for step in first] == pytest.approx([9.0, 7.0, float("nan")], nan_ok=True)
    traced = embedded(render([report]))["sources"][0]["traces"][1]
    assert (traced["method"], traced["phases"]) == ("U-LDA", PHASES)
    assert [found is not None for found in traced["slices"]] == [i in INDICES for i in range(6)]
    descended = [[step[-1] for step in traced["slices"][i]] for i in INDICES]
    # 6 + 288 * 0.02 > 5 + 288 * 0.01; the third example rises from 6.5 to 8
    assert descended == [[1, 1, 1], [1, 1], [1, 1, 0]]
    # how each step was taken, as its place in the names of the branches
    assert [[step[5] for step in traced["slices"][i]] for i in INDICES] == [[0, 1, 0], [1, 1], [2, 0, 0]]


@pytest.mark.parametrize(
    ("domain", "slices", "title", "methods"),
    [
        ("cardiac", 40, "one of my own: cardiac, adapted with 40 slices", ("TV", "U-LDA")),
        ("cardiac", 0, "one of my own: cardiac, as trained", ("TV", "U-LDA")),
        ("knee", None, "one of my own: knee, as trained", ("U-LDA",)),
        ("brain", None, "one of my own: brain", ("U-LDA",)),
    ],
)
def test_what_is_chosen(domain: str, slices: int | None, title: str, methods: tuple[str, ...], folder: Path) -> None:
    report = read_report(folder, domain=domain, slices=slices)
    assert (report.title, report.methods) == (title, methods)
    assert render([report]).count("<h1>") == 1


def test_the_default_is_the_fewest_slices_that_most_methods_have(tmp_path: Path) -> None:
    for method, sizes in {"ulda": (5, 40), "meta": (40, 100), "dncn": (40, 100), "unet": (100,)}.items():
        for size in sizes:
            add_run(tmp_path, Run("adapt", method, "cardiac", size), size, examples=False)
    report = read_report(tmp_path)
    # three of the four have 40, three have 100
    assert "adapted with 40 slices" in report.title
    assert report.notes[-1] == "without a result on cardiac, adapted with 40 slices: unet"
    assert report.notes[0] == "no method has kept example images here, so that there are scores alone"
    assert "phase axis" in report.provenance["data"]


def test_the_definition_gives_the_order_and_the_mask(tmp_path: Path) -> None:
    mask = cartesian_mask(SIDE, 0.2, seed=0)
    for domain in ("knee", "cardiac"):
        for method in ("meta", "dncn", "ulda"):
            whole: dict[str, Any] = {"experiment": "cross-anatomy", "recipe": {}}
            sampled = fingerprint([("mask", mask.lines)])
            add_run(tmp_path, Run("adapt", method, domain, 5), 1, domain, whole=whole, mask=sampled)
    for chosen in (None, "knee"):
        report = read_report(tmp_path, domain=chosen)
        assert report.methods == ("U-LDA", "DnCn", "Meta")
        assert report.slices[0].mask == mask
    assert read_report(tmp_path).title.startswith("cross-anatomy: cardiac")
    # a mask that is not the one of the runs is not shown
    add_run(tmp_path, Run("adapt", "ulda", "cardiac", 40), 1, mask="f" * 64)
    report = read_report(tmp_path, slices=40)
    assert report.slices[0].mask is None
    assert report.provenance["data"]["mask"] == "not on record"


def test_a_scale_has_its_own_domains(tmp_path: Path) -> None:
    """On the scale of the paper the targets of this experiment are cardiac and prostate, and knee is a source."""
    whole: dict[str, Any] = {"experiment": "cross-anatomy", "scale": {"name": "paper", "side": SIDE}}
    for domain in ("prostate", "knee"):
        add_run(tmp_path, Run("classical", "TV", domain), 1, domain, whole=whole)
    assert read_report(tmp_path).title == "cross-anatomy: prostate"
    with pytest.raises(UldaError, match="it has them on: prostate, knee"):
        read_report(tmp_path, domain="cardiac")


def test_what_counts_as_a_subject_and_how_many_slices_there_were(tmp_path: Path) -> None:
    run = Run("adapt", "ulda", "knee", 100)
    add_run(tmp_path, run, 1, "knee", whole={"experiment": "cross-anatomy"}, n=65)
    add_run(tmp_path, Run("classical", "TV", "knee"), 2, "knee", whole={"experiment": "cross-anatomy"})
    report = read_report(tmp_path)
    assert report.title == "cross-anatomy: knee, adapted with all 65 slices"
    assert report.description.startswith("6 test slices of 3 slice positions of one volunteer, ")
    assert report.verdict.endswith(" on 3 slice positions of one volunteer (6 slices)")
    assert report.notes[-1] == (
        "what counts as a subject of knee, also in the intervals: slice positions of one volunteer"
    )


def test_measured_kspace_comes_from_the_data_beside_the_results(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kspace = (rng.normal(size=(8, SIDE, SIDE)) + 1j * rng.normal(size=(8, SIDE, SIDE))).astype(np.complex64)
    # the scale reports on two slices of each subject
    data = add_data(tmp_path, kspace, "aaabbbcc")
    taken = choose_slices(data.subjects, 6)
    assert [data.subjects[i] for i in taken] == [*SUBJECTS]
    scale = {"name": "bench", "side": SIDE, "test_slices": 6}
    facts: dict[str, Any] = {"data": data.take(taken).fingerprint(), "kspace": "measured"}
    add_run(tmp_path, Run("adapt", "ulda", "cardiac", 5), 1, whole={"scale": scale}, **facts)
    report = read_report(tmp_path)
    assert report.kspace is not None
    np.testing.assert_allclose(report.kspace, np.abs(kspace[[taken[i] for i in INDICES]]), rtol=1e-6)
    assert report.phase_axis == -1
    save_comparison(tmp_path / "comparison.h5", report)
    again = load_comparison(tmp_path / "comparison.h5")
    assert again.kspace is not None
    assert np.array_equal(again.kspace, report.kspace)
    # other data of that name is not that of the results
    add_run(tmp_path, Run("adapt", "ulda", "cardiac", 5), 1)
    (tmp_path / "comparison.h5").unlink()
    report = read_report(tmp_path)
    assert (report.kspace, report.phase_axis) == (None, -2)
    assert "taken for granted" in report.provenance["data"]["phase axis"]


def test_the_report_of_an_experiment_survives_its_file(folder: Path, tmp_path: Path) -> None:
    report = read_report(folder)
    save_comparison(tmp_path / "comparison.h5", report)
    again = load_comparison(tmp_path / "comparison.h5")
    assert repr(again.traces) == repr(report.traces)
    assert again.shown == INDICES
    without: list[Report] = [Report(**{**vars(one), "traces": {}}) for one in (report, again)]
    assert same(*without)


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    add_run(tmp_path, Run("adapt", "ulda", "cardiac", 5, 1), 1)
    add_run(tmp_path, Run("adapt", "meta", "cardiac", 5, 1), 3)
    add_run(tmp_path, Run("adapt", "meta", "cardiac", 5, 0), 2)
    add_run(tmp_path, Run("adapt", "dncn", "cardiac", 5, 1), 4, mask="f" * 64)
    add_run(tmp_path, Run("adapt", "unet", "cardiac", 5, 2), 4)
    # examples of another run: the scores are not theirs
    add_run(tmp_path, Run("adapt", "lda", "cardiac", 5, 1), 5, psnr=[20.0] * 6)
    report = read_report(tmp_path)
    assert report.methods == ("lda", "Meta", "U-LDA")
    assert list(report.images) == ["Meta", "U-LDA"]
    assert report.scores["Meta"]["psnr"].tolist() == psnr_of(3)
    assert report.notes[1:] == (
        "in the tables alone, since the example images do not fit the scores: lda",
        "all is of draw 2 of 3 of the target slices, and ± is over test slices; ulda experiment table has the means "
        "over the draws, where ± is over draws: there are several of Meta",
        "left out, since without a result of draw 2: unet",
        "left out, since tested on other slices or with another mask: DnCn",
    )


def test_a_packed_file_has_scores_and_says_that_it_has_no_images(folder: Path, packed: Path) -> None:
    report, whole = read_report(packed), read_report(folder)
    assert (report.images, report.reference, report.traces) == ({}, None, {})
    assert report.notes[0] == "a packed file holds scores and no images; the folder that the experiment ran in has some"
    assert report.methods == whole.methods
    assert report.verdict == whole.verdict
    page = render([report])
    assert "a packed file holds scores and no images" in page
    assert "better on" in page
    data = embedded(page)["sources"][0]
    assert (data["pictures"], data["traces"]) == ([], [])
    assert data["scores"][3]["psnr"] == psnr_of(1)


def test_provenance(folder: Path) -> None:
    found = read_report(folder).provenance
    assert found["experiment"] == {
        "results": folder.name, "experiment": "one of my own", "scale": "bench", "domain": "cardiac",
        "target slices": "5", "command": "ulda experiment run FILE --scale bench",
    }  # fmt: skip
    assert found["runs"]["U-LDA"] == "adapt-ulda-cardiac-5-0, 80 steps, seed 0, learned from 5 slices"
    assert found["data"]["SHA-256 of the test slices"] == "d" * 64
    assert found["data"]["SHA-256 of the slices learned from"] == "e" * 64
    assert found["data"]["SHA-256 of the mask"] == fingerprint([("mask", MASK.lines)])
    assert MASK.hash in found["data"]["mask"]
    assert "seed 1" in found["data"]["mask"]
    assert found["software"] == {"ulda": "0.1.0"}


def test_versions_that_differ_are_counted(tmp_path: Path) -> None:
    versions = {"ulda": {"ulda": "0.1.0"}, "meta": {"ulda": "0.2.0"}, "dncn": {"ulda": "0.2.0", "code": "abc"}}
    for method, software in versions.items():
        run = Run("adapt", method, "cardiac", 5)
        add_run(tmp_path, run, 1, examples=False, whole={"software": software})
    assert read_report(tmp_path).provenance["software"] == {
        "ulda": "0.2.0 (2 runs), 0.1.0 (1 run)",
        "code": "abc (1 run), not on record (2 runs)",
    }


def test_mistakes_are_one_sentence_with_what_there_is(folder: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    (tmp_path / "nothing").mkdir()
    whole = json.loads(packed.read_text())
    broken: dict[str, Any] = {
        "text.json": "no",
        "list.json": "[]",
        "other.json": '{"verdict": 1}',
        "runs.json": json.dumps(whole | {"runs": [1]}),
        "scale.json": json.dumps(whole | {"scale": "paper"}),
        "run.json": json.dumps(whole | {"runs": {"train-x": {"run": {}, "results": {"a": {}}}}}),
        "scores.json": json.dumps(whole | {"runs": {"k": {
            "run": {"kind": "train", "method": "m", "size": 0, "draw": 0},
            "results": {"a": {"psnr": [1.0], "subjects": ["s", "s"]}},
        }}}),
    }  # fmt: skip
    for name, text in broken.items():
        (tmp_path / name).write_text(text)
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (folder, {"domain": "liver"}, "no results on 'liver'; it has them on: cardiac, knee, brain"),
        (folder, {"slices": 7}, r"on cardiac with 7 target slices; there are: 0 \(as trained\), 5, 40"),
        (folder, {"domain": "brain", "slices": 5}, "nothing was adapted to brain"),
        (packed, {"domain": "liver"}, "results.json has no results on 'liver'"),
        (folder, {"reference": "x.h5"}, "has its own reference"),
        (tmp_path / "empty", {}, "there are no runs in .*empty yet"),
        (tmp_path / "nothing", {}, "holds no comparison.h5 and no runs of an experiment"),
        (tmp_path / "text.json", {}, "text.json is not JSON"),
        (tmp_path / "list.json", {}, "cannot be read as packed results .*`ulda experiment pack` wrote"),
        (tmp_path / "other.json", {}, "cannot be read as packed results .*`ulda experiment pack` wrote"),
        (tmp_path / "runs.json", {}, "cannot be read as packed results .*`ulda experiment pack` wrote"),
        (tmp_path / "scale.json", {}, "one of my own has no scale 'paper'; it has: bench"),
        (tmp_path / "run.json", {}, "train-x in run.json is not the result of a run"),
        (tmp_path / "scores.json", {}, "not one score for each of 2 slices"),
        (tmp_path / "nowhere.json", {}, "there is no file"),
    ]
    for source, options, message in cases:
        with pytest.raises(UldaError, match=message):
            read_report(source, **options)


def test_domains_and_slices_are_of_experiments_alone(tmp_path: Path, folder: Path) -> None:
    save_comparison(tmp_path / "comparison.h5", read_report(folder))
    for options in ({"domain": "cardiac"}, {"slices": 5}):
        with pytest.raises(UldaError, match="is not of an experiment"):
            read_report(tmp_path, **options)


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    report = read_report(hostile_folder(tmp_path, HOSTILE))
    page = render([report])
    assert page.count("</script>") == 2
    assert "<img" not in page
    data = embedded(page)["sources"][0]
    assert data["methods"] == [HOSTILE_NAME, "other"]
    assert data["slices"][1][0] == HOSTILE
    assert data["title"] == f"{HOSTILE}: {HOSTILE_NAME}, adapted with 5 slices"
