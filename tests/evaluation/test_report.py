from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.data.readers.small_files import outsource
from tests.evaluation.report_examples import HOSTILE, SUBJECTS, embedded, example, hostile
from tests.small_models import small_model
from ulda.data import Domain, DomainWriter, Header, Record, demo
from ulda.errors import UldaError
from ulda.evaluation import paired_difference
from ulda.evaluation.assessment import assess
from ulda.evaluation.report import (
    Report,
    Slice,
    load_comparison,
    read_report,
    render,
    report_of_assessment,
    save_comparison,
    write_report,
)
from ulda.methods.ulda import ULDA
from ulda.metrics import PER_SLICE, evaluate
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.reconstruction import reconstruct


def same(one: Report, other: Report) -> bool:
    """Tell whether two reports hold the same numbers, bit by bit, and the same texts."""
    arrays: list[tuple[Any, Any]] = [
        (one.all_images(), other.all_images()),
        *((one.scores[name], other.scores[name]) for name in one.scores),
    ]
    plain = [
        replace(
            report,
            images={},
            reference=None,
            kspace=None,
            scores={},
            provenance={k: dict(v) for k, v in report.provenance.items()},
        )
        for report in (one, other)
    ]
    return (
        plain[0] == plain[1]
        and list(one.scores) == list(other.scores)
        and all(
            list(first) == list(second) and all(np.array_equal(first[k], second[k], equal_nan=True) for k in first)
            for first, second in arrays
        )
    )


def model() -> ULDA:
    return small_model("a", "b", domain="knee")


def crops(path: Path, subjects: str = "aab") -> Domain:
    images = demo("knee").take(range(8, 8 + len(subjects))).images()
    with DomainWriter(path, Header("crops", "complex", note="a crop")) as writer:
        for i, (image, subject) in enumerate(zip(images, subjects, strict=True)):
            writer.append(Record(image[40:72, 40:72].numpy(), subject, volume=f"v{i // 2}"))
    return Domain.open(path)


@pytest.mark.parametrize("make", [example, hostile])
def test_a_comparison_survives_its_file(make: Callable[[], Report], tmp_path: Path) -> None:
    save_comparison(tmp_path / "comparison.h5", make())
    for source in (tmp_path, tmp_path / "comparison.h5"):
        assert same(read_report(source), make())


def test_a_report_without_images_or_traces(tmp_path: Path) -> None:
    report = replace(example(), images={}, reference=None, traces={})
    save_comparison(tmp_path / "comparison.h5", report)
    assert same(load_comparison(tmp_path / "comparison.h5"), report)
    data = embedded(render([report]))["sources"][0]
    assert data["pictures"] == []
    assert data["scores"][1]["psnr"] == [30.0, 9.5, 100.25, None, 28.0]
    assert data["scores"][2]["psnr"][2] == "Infinity"


def test_the_report_of_an_assessment(tmp_path: Path) -> None:
    domain, mask = crops(tmp_path / "d.h5"), cartesian_mask(32, 0.4, seed=1)
    assessment = assess(model(), domain, mask)
    report = report_of_assessment(assessment, domain, provenance={"command": {"command": "x"}})
    assert [(one.subject, one.name) for one in report.slices] == [
        ("a", "slice 0 (v0)"), ("a", "slice 1 (v0)"), ("b", "slice 2 (v1)"),
    ]  # fmt: skip
    assert report.provenance["data"]["SHA-256 of the slices"] == domain.fingerprint()
    assert (report.judged, list(report.traces), report.verdict) == ("adapted", ["adapted"], assessment.verdict)
    assert report.kspace is None
    for name, scores in assessment.comparison.scores.items():
        expected = evaluate(torch.from_numpy(report.images[name]), torch.from_numpy(report.all_images()[""]), PER_SLICE)
        assert report.scores[name]["psnr"].tolist() == scores.psnr.tolist() == expected.psnr.tolist()
    # the traces are those of the slices, in their order: each equals that of a run on its own
    network = model()
    for i in range(3):
        image = domain.image(i) / domain.image(i).abs().max()
        physics = CartesianMRI(mask, -2)
        alone = reconstruct(network, physics.A(image), physics).trace.steps(0)
        assert [s.phi for s in report.traces["adapted"][i]] == pytest.approx([s.phi for s in alone], rel=1e-4)


def test_summary_and_differences() -> None:
    report = example()
    rows = {row["method"]: row for row in report.summary()}
    assert rows["zero-filling"]["mean"]["psnr"] == 22.0
    assert rows["zero-filling"]["std"]["psnr"] == pytest.approx(2**0.5)
    assert rows["adapted"]["best"] == {"psnr", "ssim", "nmse"}
    assert rows["TV"]["best"] == set()
    expected = paired_difference(np.array([0.5, 0.4, 0.3, 0.2, 0.1]) / 3, np.array([0.5, 0.4, 0.3, 0.2, 0.1]), SUBJECTS)
    assert report.difference("zero-filling", "nmse") == expected
    assert report.difference("TV", "psnr") is None
    page = render([report])
    assert "−0.20000 [" in page
    # less is better for the NMSE, and adapted has less on all five slices
    row = page[page.index("−0.20000 [") :]
    assert "5 of 5" in row[: row.index("</tr>")]


@pytest.mark.parametrize(
    ("n_slices", "words"),
    [
        (1, "with no interval, since there is a single slice, and the number of slices"),
        (2, "interval over slices, which says nothing about other subjects, and the number of slices"),
        (5, "interval over subjects and the number of slices"),
    ],
)
def test_captions_say_what_the_numbers_are(n_slices: int, words: str) -> None:
    report = example()
    scores = {
        name: {key: values[:n_slices] for key, values in by_metric.items() if key != "psnr"}
        for name, by_metric in report.scores.items()
    }
    few = replace(report, images={}, reference=None, traces={}, slices=report.slices[:n_slices], scores=scores)
    text = " ".join(render([few]).split())
    counted = "1 slice" if n_slices == 1 else f"{n_slices} slices"
    assert f"Mean over {counted} (per slice, peak 1). ± is the standard deviation over these slices." in text
    assert words in text


def test_shapes_are_checked() -> None:
    with pytest.raises(UldaError, match=r"must all be \(5, H, W\)"):
        replace(example(), reference=np.zeros((5, 3, 3), np.float32))
    with pytest.raises(UldaError, match=r"must all be \(2, H, W\)"):
        replace(example(), pictured=(0, 3), traces={})
    for pictured in ((0, 0), (4, 5), (-1,)):
        with pytest.raises(UldaError, match="must be some of 0 to 4, each once"):
            replace(example(), pictured=pictured)
    with pytest.raises(UldaError, match="needs 5 scores"):
        replace(example(), scores={"TV": {"psnr": np.zeros(4)}})
    with pytest.raises(UldaError, match="no slices"):
        replace(example(), slices=())


def test_a_method_needs_a_name_and_names_need_not_be_text(tmp_path: Path) -> None:
    images = np.ones((1, 16, 16), np.float32)
    with pytest.raises(UldaError, match="has no name"):
        Report("", "", (Slice("a", "0"),), {"": images}, images)
    write_report([Report("\udcff.npz", "", (Slice("\udcff", "0"),), {"ours": images}, images)], tmp_path / "page.html")
    assert "?.npz" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_measured_kspace_of_an_assessment(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    kspace = (rng.normal(size=(2, 2, 32, 32)) + 1j * rng.normal(size=(2, 2, 32, 32))).astype(np.complex64)
    for n_coils in (1, 2):
        with DomainWriter(tmp_path / "d.h5", Header("scan", "kspace", "measured")) as writer:
            for one in kspace:
                writer.append(Record(one[0] if n_coils == 1 else one, "a"))
        domain = Domain.open(tmp_path / "d.h5")
        mask = cartesian_mask(32, 0.5, center=0.25, seed=1)
        report = report_of_assessment(assess(model(), domain, mask), domain)
        expected = np.sqrt((np.abs(kspace[:, :n_coils]) ** 2).sum(1))
        assert report.kspace is not None
        np.testing.assert_allclose(report.kspace, expected, rtol=1e-5)


def test_negative_numbers_have_a_minus_sign() -> None:
    scores = {name: {"psnr": -np.arange(1.0, 6.0) - i} for i, name in enumerate(example().scores)}
    verdict = "U-LDA-2 did not help: -0.06 dB [-0.15, +0.24] in 2-3 steps"
    page = render([replace(example(), scores=scores, verdict=verdict)])
    assert "U-LDA-2 did not help: −0.06 dB [−0.15, +0.24] in 2-3 steps" in page
    summary = page[page.index("<tbody>") : page.index('id="viewer"')]
    assert "−3.00 ± 1.41" in summary
    assert "−2.00 [−2.00, −2.00]" in summary
    assert re.search(r"-\d", summary) is None


@pytest.mark.parametrize(
    ("titles", "heading"),
    [
        (["cross-anatomy: knee, as trained"], "cross-anatomy: knee, as trained"),
        ([f"cross-anatomy: knee, adapted with {n} slices" for n in range(2, 8)], "cross-anatomy: 6 results"),
        (["knee", "cross-anatomy: knee", "cross-anatomy: brain"], "knee and cross-anatomy: 3 results"),
        (["a.h5", "b.h5", "c.h5", "c.h5"], "4 results"),
    ],
)
def test_the_heading_is_short(titles: list[str], heading: str) -> None:
    page = render([replace(example(title), images={}, reference=None, traces={}) for title in titles])
    assert re.findall("<h1>(.*?)</h1>", page) == [heading]
    assert all(page.count(f">{title}</option>") == titles.count(title) for title in titles if len(titles) > 1)


def test_names_are_only_text() -> None:
    page = render([hostile()])
    assert page.count("</script>") == 2
    assert "<img" not in page
    data = embedded(page)["sources"][0]
    assert data["title"] == HOSTILE
    assert data["slices"][3][:2] == [f"{HOSTILE}3", f"{HOSTILE} slice 3"]
    assert data["methods"] == [f"{HOSTILE} {i}" for i in range(3)]


def test_the_page_asks_for_nothing() -> None:
    page = render([example()])
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert re.search(r"<link|@import|url\(|<iframe|<object", page) is None
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert "unsafe" not in policy.group(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Domain]:
    """Return a run file of three slices, and their fully sampled data."""
    folder = tmp_path_factory.mktemp("run")
    domain = crops(folder / "d.h5")
    physics = CartesianMRI(cartesian_mask(32, 0.4, seed=1), -2)
    y = physics.A(torch.stack(list(domain.images())))
    reconstruct(model(), y, physics).save(folder / "run.h5")
    return folder / "run.h5", domain


def test_the_report_of_a_run(run: tuple[Path, Domain]) -> None:
    path, domain = run
    report = read_report(path)
    assert report.methods == ("zero-filling", "reconstruction")
    assert (report.reference, report.scores, report.judged) == (None, {}, "")
    # the k-space is that of the measurements
    mask = report.slices[0].mask
    assert mask is not None
    physics = CartesianMRI(mask, -2)
    y = physics.A(torch.stack(list(domain.images()))).abs().numpy()
    assert report.kspace is not None
    peaks = [stack.max((1, 2), keepdims=True) for stack in (report.kspace, y)]
    np.testing.assert_allclose(report.kspace / peaks[0], y / peaks[1], atol=1e-6)
    with h5py.File(path) as file:
        image = np.abs(file["image"][()])
        certificate = json.loads(file["runs/0"].attrs["certificate"])
    np.testing.assert_allclose(report.images["reconstruction"], image / image.max((1, 2), keepdims=True), rtol=1e-5)
    assert [s.phi for s in report.traces["reconstruction"][2]] == [
        s["phi"] for s in certificate["samples"][2]["iterations"]
    ]
    assert report.provenance["certificate"]["digest"] == certificate["digest"]
    assert report.provenance["certificate"]["digest fits the content"] == "yes"
    assert report.verdict == "according to the certificate, every one of 9 phases descended the objective"
    compared = read_report(path, domain.path)
    reference = torch.stack(list(domain.images())).abs()
    expected = evaluate(torch.from_numpy(image), reference, PER_SLICE)
    assert compared.scores["reconstruction"]["psnr"] == pytest.approx(expected.psnr.numpy(), abs=1e-3)
    assert compared.scores["zero-filling"]["psnr"].mean() < 60


def test_a_changed_certificate_is_noticed(run: tuple[Path, Domain], tmp_path: Path) -> None:
    path = tmp_path / "changed.h5"
    path.write_bytes(run[0].read_bytes())
    with h5py.File(path, "a") as file:
        certificate = json.loads(file["runs/0"].attrs["certificate"])
        certificate["samples"][0]["iterations"][1]["phi"] *= 1000
        file["runs/0"].attrs["certificate"] = json.dumps(certificate)
    report = read_report(path)
    assert "NOT every one" in report.verdict
    assert report.provenance["certificate"]["digest fits the content"] == "NO"
    with h5py.File(path, "a") as file:
        certificate["samples"][0]["iterations"][1]["branch"] = "<b>"
        file["runs/0"].attrs["certificate"] = json.dumps(certificate)
    with pytest.raises(UldaError, match="not one that ulda wrote"):
        read_report(path)


def test_sources_that_are_none(run: tuple[Path, Domain], tmp_path: Path) -> None:
    path, domain = run
    (tmp_path / "text.h5").write_text("no")
    save_comparison(tmp_path / "comparison.h5", example())
    empty = tmp_path / "empty"
    empty.mkdir()
    cases: list[tuple[Path, Path | None, str]] = [
        (empty, None, "holds no comparison.h5"),
        (tmp_path / "nowhere.h5", None, "there is no file"),
        (tmp_path / "nowhere.nii.gz", None, "there is no file"),
        (tmp_path / "text.h5", None, "cannot be read as HDF5"),
        (domain.path, None, "neither a comparison.h5 nor"),
        (tmp_path, domain.path, "has its own reference"),
        (path, demo("knee").path, "the reference has the shape"),
    ]
    for source, reference, message in cases:
        with pytest.raises(UldaError, match=message):
            read_report(source, reference)


def test_damaged_comparisons_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "comparison.h5"
    whole = tmp_path / "whole.h5"
    save_comparison(whole, example())

    def drop(name: str) -> Callable[[Any], None]:
        return lambda file: file.__delitem__(name)

    def claim(file: Any) -> None:
        del file["reference"]
        file.create_dataset("reference", (5, 200_000, 200_000), np.float32, chunks=(1, 1000, 1000))

    def garble(file: Any) -> None:
        del file["report"]
        file["report"] = np.frombuffer(b'{"title": 3}', np.uint8)

    damages: list[Callable[[Any], None]] = [drop("report"), drop("images/1"), drop("traces/0/phi"), claim, garble]
    for damage in damages:
        path.write_bytes(whole.read_bytes())
        with h5py.File(path, "a") as file:
            damage(file)
        with pytest.raises(UldaError, match=r"cannot be read as a comparison|claims 800 GB"):
            load_comparison(path)


@pytest.mark.parametrize("name", ["reference", "report", "images/0"])
def test_comparisons_with_arrays_in_other_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "comparison.h5"
    save_comparison(path, example())
    outsource(path, name)
    with pytest.raises(UldaError, match=r"comparison\.h5 is refused: its entry .* is a link to another file"):
        read_report(path)
