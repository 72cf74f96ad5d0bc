from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel as untyped_nibabel
import numpy as np
import pytest
import torch
from PIL import Image

import ulda
from tests.cli.conftest import Command
from ulda.data import demo
from ulda.methods import ULDA
from ulda.physics import CartesianMRI, cartesian_mask, fft2c
from ulda.solvers import load_runs

nibabel: Any = untyped_nibabel


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model = ULDA(sources=["brain", "prostate"], width=3, depth=2, phases=3)
    model.save(folder / "base")
    model.add_domain("knee")
    with torch.no_grad():
        model.prior.adapters["knee"].get_parameter("layer.real").mul_(2)
    model.save_adapter("knee", folder / "knee")
    return folder / "base"


def knee(n: int) -> torch.Tensor:
    return torch.stack(list(demo("knee").take(range(6, 6 + n)).images()))[:, 32:95, 40:88]


@pytest.fixture(scope="module")
def undersampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six slices in fastMRI's layout, in a scanner's units, as a test set has them."""
    path = tmp_path_factory.mktemp("data") / "knee.h5"
    lines = cartesian_mask(48, 0.4, seed=1).lines
    with h5py.File(path, "w") as file:
        file["kspace"] = (3e-5 * fft2c(knee(6)) * lines).numpy()
        file["mask"] = lines.numpy()
    return path


def expected_images(base: Path, n: int) -> torch.Tensor:
    physics = CartesianMRI(cartesian_mask(48, 0.4, seed=1), -1)
    return ulda.reconstruct(ulda.load(base), physics.A(3e-5 * knee(n)), physics).image


def test_hdf5_holds_images_and_runs(tmp_path: Path, base: Path, undersampled: Path, command: Command) -> None:
    out = tmp_path / "out.h5"
    code, text, _ = command("reconstruct", undersampled, "--model", base, "--out", out, "--json")
    assert code == 0
    summary = json.loads(text)
    assert (summary["n_slices"], summary["shape"], summary["n_coils"], summary["phases"]) == (6, [63, 48], 1, 3)
    assert summary["domain"] == "unadapted"
    assert summary["sampled"] == pytest.approx(19 / 48)
    assert summary["every_step_descended"]
    with h5py.File(out) as file:
        images = torch.from_numpy(file["image"][()])
        facts = json.loads(file.attrs["facts"])
    assert (facts["domain"], facts["input"]) == ("unadapted", "knee.h5")
    torch.testing.assert_close(images, expected_images(base, 6), rtol=1e-3, atol=1e-9)
    assert [len(run.x) for run in load_runs(out)] == [4, 2]
    code, text, _ = command("verify", out)
    assert code == 0
    assert "every phase descended" in text
    assert command("verify", out, "--json")[1].strip().startswith('{\n  "ok": true')
    code, _, error = command("reconstruct", undersampled, "--model", base, "--out", out)
    assert code == 1
    assert "--force" in error
    assert command("reconstruct", undersampled, "--model", base, "--out", out, "--force")[0] == 0


def read_npy(path: Path) -> Any:
    return np.abs(np.load(path))


def read_nifti(path: Path) -> Any:
    return np.moveaxis(nibabel.load(path).get_fdata(), -1, 0)


def read_png(path: Path) -> Any:
    pages = []
    for file in sorted(path.parent.glob(f"{path.stem}-*.png")):
        with Image.open(file) as picture:
            pages.append(np.asarray(picture, float) / 255)
    return np.stack(pages)


def change_npy(path: Path) -> None:
    array = np.load(path)
    array[1, 30, 20] *= 1.01
    np.save(path, array)


def change_nifti(path: Path) -> None:
    array = np.asarray(nibabel.load(path).dataobj).copy()
    array[30, 20, 1] *= 1.01
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)


def change_png(path: Path) -> None:
    picture = path.with_name(f"{path.stem}-001.png")
    with Image.open(picture) as image:
        array = np.asarray(image).copy()
    array[30, 20] ^= 1
    Image.fromarray(array).save(picture)


@pytest.mark.parametrize(
    ("name", "read", "change", "peak"),
    [
        ("out.npy", read_npy, change_npy, 0),
        ("out.nii", read_nifti, change_nifti, 0),
        ("out.nii.gz", read_nifti, change_nifti, 0),
        ("out.png", read_png, change_png, 1),
    ],
)
def test_images_for_other_programs(
    tmp_path: Path,
    base: Path,
    undersampled: Path,
    command: Command,
    name: str,
    read: Callable[[Path], Any],
    change: Callable[[Path], None],
    peak: float,
) -> None:
    out = tmp_path / name
    assert command("reconstruct", undersampled, "--model", base, "--out", out)[0] == 0
    expected = expected_images(base, 6).abs().double().numpy()
    expected = expected * peak / expected.max() if peak else expected
    np.testing.assert_allclose(read(out), expected, rtol=2e-3, atol=0.55 / 255 if peak else 1e-9)
    assert (tmp_path / f"{name}.run.h5").exists()
    assert command("verify", out)[0] == 0
    change(out)
    code, _, error = command("verify", out)
    assert code == 1
    named = name.replace(".png", "-001.png")
    assert f"{named} is not the image of the run: slice 1 differs in row 30, column 20" in error
    (tmp_path / f"{name}.run.h5").unlink()
    code, _, error = command("verify", out)
    assert code == 1
    assert f"there is no run file {name}.run.h5 beside {name}" in error


@pytest.mark.parametrize(
    ("dataset", "where", "message"),
    [
        ("image", (5, 30, 20), "run of the slices 4 to 5: the image of sample 1 is not its result times its scale"),
        ("scale", (1,), "the image of sample 1 is not its result times its scale"),
        ("runs/1/x", (0, 30, 20), "run of the slices 4 to 5: the result is not the one the certificate was made for"),
        ("runs/0/y", (2, 30, 24), "the measurement is not the one the certificate was made for"),
        ("weights/adapter.layer.real", (0, 0, 1, 1), "the weights is not the one the certificate was made for"),
    ],
)
def test_tampering_with_the_run_is_detected(
    tmp_path: Path,
    base: Path,
    undersampled: Path,
    command: Command,
    dataset: str,
    where: tuple[int, ...],
    message: str,
) -> None:
    out = tmp_path / "out.h5"
    assert command("reconstruct", undersampled, "--model", base, "--out", out, "--iterations", 2)[0] == 0
    with h5py.File(out, "r+") as file:
        file[dataset][where] = file[dataset][where] * 1.01
    code, _, error = command("verify", out)
    assert code == 1
    assert message in error


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_nifti_out_lies_where_nifti_in_lay(tmp_path: Path, base: Path, command: Command, axis: int) -> None:
    """The same voxel has the same place in the room, across whatever axis the slices were cut."""
    volume = np.moveaxis(knee(3).abs().numpy(), 0, axis)
    zooms = [1.5, 1.2, 1.1]
    zooms[axis] = 4
    turned = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, -1]]) @ np.diag(zooms)
    affine = np.vstack([np.column_stack([turned, [10, -20, 30]]), [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(volume, affine), tmp_path / "a.nii.gz")
    out = tmp_path / "out.nii"
    asked = ("--model", base, "--ratio", 0.4, "--iterations", 1, "--out", out)
    assert command("reconstruct", tmp_path / "a.nii.gz", *asked)[0] == 0
    found = nibabel.load(out)
    before = affine @ [*np.insert([9, 5], axis, 2), 1]  # row 9, column 5 of slice 2
    np.testing.assert_allclose(found.affine @ [9, 5, 2, 1], before, atol=1e-4)
    assert found.shape == (*np.delete(volume.shape, axis), 3)
    assert command("verify", out)[0] == 0


def test_nifti_in_and_an_adapter(tmp_path: Path, base: Path, command: Command) -> None:
    magnitude = 700 * knee(3).abs()
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(magnitude.numpy(), 0, -1), np.diag([1, 1, 4, 1])), tmp_path / "a.nii")
    out = tmp_path / "out.npy"
    arguments = ("reconstruct", tmp_path / "a.nii", "--model", base, "--out", out)
    code, _, error = command(*arguments)
    assert code == 1
    assert "a.nii is fully sampled, so there is nothing to reconstruct" in error
    assert not list(tmp_path.glob("out*"))
    code, text, _ = command(
        *arguments, "--adapter", base.parent / "knee", "--ratio", 0.3, "--seed", 5, "--iterations", 4
    )
    assert code == 0
    assert "knee" in text
    physics = CartesianMRI(cartesian_mask(63, 0.3, seed=5))
    model = ulda.load(base, base.parent / "knee")
    result = ulda.reconstruct(model, physics.A(magnitude.to(torch.complex64)), physics, iterations=4)
    np.testing.assert_allclose(np.load(out), result.image.numpy(), rtol=1e-3, atol=1e-2)
    assert command("verify", out)[0] == 0


def test_several_coils_and_a_mask_file(tmp_path: Path, base: Path, command: Command) -> None:
    kspace = demo("brain-multicoil").kspace(0)[:, 64:160, 64:160]
    with h5py.File(tmp_path / "brain.h5", "w") as file:
        file["kspace"] = kspace[None].numpy()
    cartesian_mask(96, 0.4, center=0.15).save(tmp_path / "mask.json")
    out = tmp_path / "brain.png"
    code, text, _ = command(
        "reconstruct", tmp_path / "brain.h5", "-m", base, "-o", out, "--mask", tmp_path / "mask.json", "--json"
    )
    assert code == 0
    assert (json.loads(text)["n_coils"], json.loads(text)["n_slices"]) == (4, 1)
    assert command("verify", out)[0] == 0
    (run,) = load_runs(tmp_path / "brain.png.run.h5")
    assert run.y.shape == (1, 4, 96, 96)


def test_mistakes_are_one_sentence(tmp_path: Path, base: Path, undersampled: Path, command: Command) -> None:
    arguments = ("reconstruct", undersampled, "--model", base)
    for extra, message in (
        (("--out", tmp_path / "a.jpg"), "a.jpg ends with none of the known suffixes .h5, .hdf5, .npy, .nii"),
        (("--out", tmp_path / "no" / "a.h5"), "does not exist; create it first"),
        (("--out", tmp_path / "a.h5", "--ratio", 0.2), "undersampled already"),
        (("--out", undersampled, "--force"), "would replace the input"),
        (("--out", tmp_path / "a.h5", "--domain", "liver"), "no adapter for the domain 'liver'"),
        (("--out", tmp_path / "a.h5", "--domain", "brain", "--adapter", base), "not both"),
        (("--out", tmp_path / "a.h5", "--model", "best"), "no bundled base 'best' and no such folder"),
        (("--out", tmp_path / "a.h5", "--ratio", 0.2, "--mask", base), "not both"),
    ):
        code, _, error = command(*arguments, *extra)
        assert code == 1
        assert message in error
        assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("acquisition", "is_told"), [("ideal", True), ("scanner", False)])
def test_a_base_of_real_valued_images_is_not_fit_for_complex_data(
    tmp_path: Path, undersampled: Path, command: Command, acquisition: str, is_told: bool
) -> None:
    ULDA(sources=["brain"], width=2, depth=1, phases=1).save(tmp_path / "base", {"acquisition": acquisition})
    code, text, _ = command("reconstruct", undersampled, "--model", tmp_path / "base", "--out", tmp_path / "out.h5")
    assert code == 0
    assert ("not fit for complex data" in text) is is_told


def test_lines_are_detected_where_there_is_no_mask(
    tmp_path: Path, base: Path, undersampled: Path, command: Command
) -> None:
    path = tmp_path / "scan.h5"
    path.write_bytes(undersampled.read_bytes())
    with h5py.File(path, "r+") as file:
        del file["mask"]
    texts = []
    for name, source in (("named", undersampled), ("detected", path)):
        code, text, error = command("reconstruct", source, "--model", base, "--out", tmp_path / f"{name}.h5")
        assert code == 0, error
        texts.append(" ".join(text.split()))
    said = "note: no mask came with 6 slices, so their empty lines count as not sampled"
    assert [said in text for text in texts] == [False, True]
    with h5py.File(tmp_path / "named.h5") as named, h5py.File(tmp_path / "detected.h5") as detected:
        assert np.array_equal(named["image"], detected["image"])
        assert json.loads(detected["runs/0"].attrs["mask"])["kind"] == "detected"


def test_noise_is_kept_estimated_or_given(tmp_path: Path, undersampled: Path, command: Command) -> None:
    ULDA(sources=["brain"], width=2, depth=1, phases=1, noise_aware=True).save(tmp_path / "base")
    known = {}
    for noise in ("keep", "auto", "2e-6"):
        out = tmp_path / f"{noise}.h5"
        code, text, _ = command(
            "reconstruct", undersampled, "--model", tmp_path / "base", "--out", out, "--noise", noise
        )
        assert code == 0, text
        run = next(load_runs(out))
        assert run.physics.noise is not None
        assert run.scale is not None
        known[noise] = run.physics.noise * run.scale
        assert run.physics.keeps_noise is (noise == "keep")
    assert known["keep"].tolist() == pytest.approx(known["auto"].tolist())
    assert known["2e-6"].tolist() == pytest.approx([2e-6] * len(known["keep"]))
    assert (known["auto"] > 0).all()
    code, _, error = command(
        "reconstruct", undersampled, "--model", tmp_path / "base", "--out", tmp_path / "x.h5", "--noise", "loud"
    )
    assert code == 1
    assert "the noise is keep, auto or a standard deviation of at least 0, but it is loud" in error
