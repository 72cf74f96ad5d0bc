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
from PIL import Image

from tests.data.readers.test_dicom import dataset
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


def test_the_pictures_of_a_folder_are_one_volume(tmp_path: Path) -> None:
    (tmp_path / "scan").mkdir()
    for i, peak in enumerate((50, 200)):
        Image.fromarray(np.full((4, 4), peak, np.uint8)).save(tmp_path / "scan" / f"{i}.png")
    import_domain([tmp_path / "scan"], tmp_path / "out.h5", ImportOptions(normalisation="volume"))
    assert [float(r.array.max()) for r in Domain.open(tmp_path / "out.h5").records()] == pytest.approx([0.25, 1])


def test_the_files_of_a_dicom_series_are_one_volume(tmp_path: Path) -> None:
    files = []
    for i, peak in enumerate((500, 2000)):
        files.append(tmp_path / f"{i}.dcm")
        dataset(files[-1], np.full((4, 4), peak, np.uint16)).save_as(files[-1], enforce_file_format=True)
    import_domain(files, tmp_path / "out.h5", ImportOptions(normalisation="volume"))
    assert [float(r.array.max()) for r in Domain.open(tmp_path / "out.h5").records()] == pytest.approx([0.25, 1])


def test_files_of_one_name_in_two_folders_are_two_volumes(tmp_path: Path) -> None:
    for folder, peak in (("a", 1.0), ("b", 10.0)):
        (tmp_path / folder).mkdir()
        save(tmp_path / folder / "T1.npz", images=np.full((1, 4, 4), peak))
    sources = [tmp_path / "a", tmp_path / "b"]
    import_domain(sources, tmp_path / "out.h5", ImportOptions(normalisation="volume"))
    domain = Domain.open(tmp_path / "out.h5")
    assert domain.label("volume") == ("T1", "T1 (2)")
    assert [float(record.array.max()) for record in domain.records()] == pytest.approx([1, 1])


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


def test_undersampled_kspace_and_a_narrower_target_keep_one_field_of_view(tmp_path: Path) -> None:
    image = torch.zeros(16, 16, dtype=torch.complex64)
    image[4:12, 5:9] = 1
    lines = np.ones(16, bool)
    lines[1] = False
    path = tmp_path / "val.h5"
    with h5py.File(path, "w") as file:
        file["kspace"] = fft2c(image)[None].numpy()
        file["mask"] = lines
        file["reconstruction_esc"] = center_crop_or_pad(image, (12, 12)).abs()[None].numpy()
    import_domain([path], tmp_path / "out.h5", ImportOptions(size=(24, 32), normalisation="none"))
    record = Domain.open(tmp_path / "out.h5").record(0)
    assert record.target is not None
    # the readout (rows) is cropped to 12 pixels and both are interpolated twofold
    assert np.allclose(record.target[::2, ::2], center_crop_or_pad(image, (12, 16)).abs(), atol=1e-5)
    assert np.allclose(ifft2c(torch.from_numpy(record.array)).abs(), record.target, atol=1e-5)


def test_complete_and_undersampled_slices_share_a_file(tmp_path: Path) -> None:
    complete = fft2c(complex_normal(8, 8)).numpy()
    partial = complete * (np.arange(8) % 3 != 0)
    source = save(tmp_path / "a.npz", kspace=np.stack([np.zeros_like(partial), partial]))
    other = save(tmp_path / "b.npz", kspace=complete[None])
    with pytest.raises(UldaError, match=r"axis of b\.npz is -2 and that of the slices before it -1"):
        import_domain([source, other], tmp_path / "out.h5")
    rows = save(tmp_path / "c.npz", kspace=np.ascontiguousarray(partial.T)[None])
    import_domain([other, rows], tmp_path / "out.h5")
    domain = Domain.open(tmp_path / "out.h5")
    assert domain.mask(0) is None
    mask = domain.mask(1)
    assert mask is not None
    assert np.flatnonzero(mask.sampled).tolist() == [1, 2, 4, 5, 7]
    assert domain.undersampled
    assert not domain.take([0]).undersampled


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


def test_a_domain_file_keeps_what_is_known_when_imported_again(tmp_path: Path) -> None:
    x = images(2)
    options = ImportOptions(licence="CC0", note="a test")
    import_domain([save(tmp_path / "a.npz", images=x)], tmp_path / "a.h5", options)
    import_domain([save(tmp_path / "b.npz", images=x)], tmp_path / "b.h5", ImportOptions(licence="MIT"))
    import_domain([tmp_path / "a.h5", tmp_path / "b.h5"], tmp_path / "both.h5")
    domain = Domain.open(tmp_path / "both.h5")
    assert (domain.header.licence, domain.header.note) == ("CC0; MIT", "a test")
    for i, record in enumerate(domain.records()):
        assert np.allclose(np.abs(record.array) * record.scale, x[i % 2], atol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.full((1, 4, 4), np.nan)}, "slice 0 of a.npz holds 16 NaN, infinite"),
        ({"images": np.zeros((2, 4, 4))}, "no slice that is not empty"),
        (
            {"images": images(2), "subject": np.array(["a", "a"]), "split": np.array(["train", "test"])},
            "subject a is in",
        ),
        ({"images": images(2), "split": np.array(["train", "trian"])}, "the split 'trian' in a.npz is unknown"),
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
