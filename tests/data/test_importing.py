from __future__ import annotations

import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch

from tests.linear_checks import complex_normal
from tests.shared_data import SHARED_DATA, shared_data_file
from ulda.data import Domain, ImportOptions, import_domain
from ulda.errors import UldaError
from ulda.physics import center_crop_or_pad, fft2c, fourier_resize, ifft2c, root_sum_of_squares

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def images(n: int, height: int = 12, width: int = 10) -> Any:
    return np.random.default_rng(0).random((n, height, width)) + 0.1


def test_sizes_labels_and_scales(tmp_path: Path) -> None:
    x = images(3)
    source = save(tmp_path / "scan.npz", images=x, subject=np.array(["a", "a", "b"]), split=["train", "train", "test"])
    summary = import_domain([source], tmp_path / "out.h5", ImportOptions(size=(8, 8), licence="CC0"))
    domain = Domain.open(tmp_path / "out.h5")
    assert (summary.n_slices, summary.n_subjects, summary.shape) == (3, 2, (8, 8))
    assert summary.splits == {"train": 2, "test": 1}
    assert (domain.name, domain.header.kind, domain.header.kspace_origin) == ("out", "magnitude", "simulated")
    expected = fourier_resize(torch.from_numpy(x).to(torch.complex64), (8, 8)).abs()
    for i in range(3):
        record = domain.record(i)
        assert float(record.array.max()) == pytest.approx(1)
        assert np.allclose(np.multiply(record.array, record.scale), expected[i], atol=1e-5)
        assert record.source == "scan.npz"


def test_volumes_are_normalised_together(tmp_path: Path) -> None:
    x = np.stack([np.full((4, 4), 2.0), np.full((4, 4), 4.0), np.full((4, 4), 10.0)])
    source = save(tmp_path / "a.npz", images=x, subject=np.array(["a", "a", "b"]))
    import_domain([source], tmp_path / "out.h5", ImportOptions(normalisation="volume"))
    peaks = [float(record.array.max()) for record in Domain.open(tmp_path / "out.h5").records()]
    scales = [record.scale for record in Domain.open(tmp_path / "out.h5").records()]
    assert peaks == pytest.approx([0.5, 1, 1])
    assert scales == pytest.approx([4, 4, 10])
    import_domain([source], tmp_path / "raw.h5", ImportOptions(normalisation="none"))
    assert [float(r.array.max()) for r in Domain.open(tmp_path / "raw.h5").records()] == [2, 4, 10]


def test_magnitudes_get_a_smooth_seeded_phase(tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz", images=images(2, 32, 32))
    for name in ("one.h5", "two.h5"):
        import_domain([source], tmp_path / name, ImportOptions(phase_seed=3))
    import_domain([source], tmp_path / "plain.h5")
    one, two, plain = (Domain.open(tmp_path / name) for name in ("one.h5", "two.h5", "plain.h5"))
    assert one.fingerprint() == two.fingerprint()
    assert "seed 3" in one.header.phase
    assert torch.allclose(one.image(0).abs(), plain.image(0).abs(), atol=1e-6)
    phase = torch.angle(one.image(0) * one.image(0).roll(1, 0).conj())[1:]
    assert 0 < float(phase.abs().max()) < 0.8
    assert not torch.allclose(one.image(0).angle(), one.image(1).angle())


def test_oversampled_fastmri_kspace_matches_its_target(tmp_path: Path) -> None:
    wide = complex_normal(2, 3, 24, 16)
    target = root_sum_of_squares(center_crop_or_pad(wide, (12, 12)))
    path = tmp_path / "fastmri.h5"
    with h5py.File(path, "w") as file:
        file["kspace"] = fft2c(wide).numpy()
        file["reconstruction_rss"] = target.numpy()
    import_domain([path], tmp_path / "out.h5")
    domain = Domain.open(tmp_path / "out.h5")
    assert (domain.shape, domain.header.kspace_origin, domain.header.phase_axis) == (
        (3, 12, 12),
        "measured",
        -1,
    )
    for i in range(2):
        record = domain.record(i)
        assert record.target is not None
        rss = root_sum_of_squares(ifft2c(torch.from_numpy(record.array))).numpy()
        assert np.allclose(rss, record.target, atol=1e-5)
        assert float(rss.max()) == pytest.approx(1, abs=1e-5)


def test_undersampled_kspace_keeps_its_lines_through_a_resize(tmp_path: Path) -> None:
    lines = np.zeros(16, bool)
    lines[[1, 5, 7, 8, 9, 12]] = True
    path = tmp_path / "test_set.h5"
    with h5py.File(path, "w") as file:
        file["kspace"] = (fft2c(complex_normal(1, 20, 16)) * torch.from_numpy(lines)).numpy()
        file["mask"] = lines
    import_domain([path], tmp_path / "out.h5", ImportOptions(size=(12, 12)))
    domain = Domain.open(tmp_path / "out.h5")
    mask = domain.mask(0)
    assert mask is not None
    assert np.flatnonzero(mask.sampled).tolist() == [3, 5, 6, 7, 10]
    energy = domain.kspace(0).abs().sum(0)
    assert torch.equal(energy > 0, mask.lines)


def test_empty_slices_are_left_out_and_counted(tmp_path: Path) -> None:
    x = images(4)
    x[[0, 3]] = 0
    summary = import_domain([save(tmp_path / "a.npz", images=x)], tmp_path / "out.h5")
    assert (summary.n_slices, summary.n_empty) == (2, 2)


def test_domain_files_merge_and_resize(tmp_path: Path) -> None:
    for name in "ab":
        import_domain([save(tmp_path / f"{name}.npz", images=images(2))], tmp_path / f"{name}.h5")
    seen: list[tuple[int, int]] = []
    import_domain(
        [tmp_path / "a.h5", tmp_path / "b.h5"],
        tmp_path / "both.h5",
        ImportOptions(size=(6, 6)),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert Domain.open(tmp_path / "both.h5").subjects == ("a", "a", "b", "b")
    assert seen == [(i, 4) for i in range(5)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.full((1, 4, 4), np.nan)}, "16 NaN or infinite"),
        ({"images": np.zeros((2, 4, 4))}, "no slice that is not empty"),
        (
            {"images": images(2), "subject": np.array(["a", "a"]), "split": np.array(["train", "test"])},
            "subject a is in",
        ),
    ],
)
def test_bad_content_leaves_nothing_behind(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    source = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(UldaError, match=message):
        import_domain([source], tmp_path / "out.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz"]


def test_mixed_sizes_need_a_size(tmp_path: Path) -> None:
    sources = [save(tmp_path / "a.npz", images=images(1, 8)), save(tmp_path / "b.npz", images=images(1, 9))]
    with pytest.raises(UldaError, match="--size"):
        import_domain(sources, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()
    import_domain(sources, tmp_path / "out.h5", ImportOptions(size=(8, 8)))
    assert Domain.open(tmp_path / "out.h5").shape == (8, 8)


def test_images_and_kspace_do_not_mix(tmp_path: Path) -> None:
    kspace = fft2c(torch.ones(1, 8, 8, dtype=torch.complex64)).numpy()
    sources = [save(tmp_path / "a.npz", images=images(1, 8, 8)), save(tmp_path / "b.npz", kspace=kspace)]
    with pytest.raises(UldaError, match=r"b\.npz holds kspace"):
        import_domain(sources, tmp_path / "out.h5")


def _limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The kernel refuses to let any file grow: the same failure as a full disk, without filling one."""
    source = save(tmp_path / "a.npz", images=np.random.default_rng(0).random((40, 64, 64)))
    command = [sys.executable, "-m", "ulda", "data", "import", str(source), "--out", str(tmp_path / "out.h5")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=_limit_file_size, check=False)
    assert done.returncode == 1
    assert "error: the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz"]


NPZ = {"brain": 393, "prostate": 300, "cardiac": 234, "knee": 72, "natural": 63}


@pytest.mark.parametrize("name", NPZ)
def test_shared_image_domains_import(tmp_path: Path, name: str) -> None:
    source = shared_data_file(f"{name}.npz")
    summary = import_domain([source], tmp_path / "out.h5", ImportOptions(size=(64, 64)))
    domain = Domain.open(tmp_path / "out.h5")
    with np.load(source) as archive:
        subjects, splits = archive["subject"].tolist(), archive["split"].tolist()
    assert summary.n_slices == NPZ[name] == len(domain)
    assert list(domain.subjects) == subjects
    assert list(domain.label("split")) == splits
    assert all(float(record.array.max()) == pytest.approx(1) for record in domain.records())


def test_shared_lowfield_kspace_imports(tmp_path: Path) -> None:
    shared_data_file("lowfield_brain/patient0_FLAIR.h5")
    files = sorted((SHARED_DATA / "lowfield_brain").glob("*.h5"))
    summary = import_domain(files, tmp_path / "out.h5", ImportOptions(size=(128, 128)))
    assert (summary.n_slices, summary.n_subjects, summary.kspace_origin) == (60, 5, "measured")


def test_shared_lowfield_kspace_matches_its_own_reconstruction(tmp_path: Path) -> None:
    import_domain([shared_data_file("lowfield_brain/patient0_FLAIR.h5")], tmp_path / "out.h5")
    domain = Domain.open(tmp_path / "out.h5")
    for i in range(len(domain)):
        target = domain.record(i).target
        assert target is not None
        error = domain.image(i).abs().numpy() - target
        assert float(np.linalg.norm(error) / np.linalg.norm(target)) < 1e-3


def test_shared_multicoil_brain_imports(tmp_path: Path) -> None:
    summary = import_domain([shared_data_file("multicoil_brain.h5")], tmp_path / "out.h5")
    assert (summary.n_slices, summary.shape) == (3, (13, 224, 224))
    domain = Domain.open(tmp_path / "out.h5")
    target = domain.record(0).target
    assert target is not None
    rss = root_sum_of_squares(ifft2c(domain.kspace(0))).numpy()
    assert float(np.abs(rss - target).max()) < 1e-3
