from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ulda
from tests.cli.conftest import Command
from ulda.data import demo
from ulda.data.measurements import Undersampling
from ulda.errors import UldaError
from ulda.methods import ULDA
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers.signatures import new_key, sign_output, signature_problem


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run file and two pairs of keys."""
    folder = tmp_path_factory.mktemp("signed")
    model = ULDA(sources=["brain"], width=3, depth=2, phases=2)
    model.domain = "brain"
    physics = CartesianMRI(cartesian_mask(32, 0.4, seed=1))
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, 32:64, 32:64]
    ulda.reconstruct(model, physics.A(images), physics).save(folder / "knee.h5")
    for name in ("ours", "theirs"):
        new_key(folder / name)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def contents(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({f"{name}@{key}": str(v) for key, v in item.attrs.items()}))
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
        return found | {key: value for key, value in file.attrs.items() if key != "signature"}


def test_what_is_signed_is_told_from_what_is_not(folder: Path, command: Command) -> None:
    out, ours, theirs = folder / "knee.h5", folder / "ours", folder / "theirs"
    before = contents(out)
    code, _, error = command("verify", out, "--key", f"{ours}.pub")
    assert (code, "it is not signed" in error) == (1, True)
    assert command("sign", out, "--key", ours)[0] == 0
    code, text, _ = command("verify", out, "--key", f"{ours}.pub")
    assert code == 0
    assert "signed with ours.pub" in text
    assert command("verify", out)[0] == 0
    code, _, error = command("verify", out, "--key", f"{theirs}.pub")
    assert (code, "not with theirs.pub" in error) == (1, True)
    assert command("sign", out, "--key", theirs)[0] == 0
    assert command("verify", out, "--key", f"{theirs}.pub")[0] == 0
    after = contents(out)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


@pytest.mark.parametrize("suffix", [".npy", ".nii.gz", ".png"])
def test_images_are_signed_with_their_run_file(suffix: str, tmp_path: Path, command: Command) -> None:
    """The signature stands in the run file and covers the bytes beside it."""
    out, key = tmp_path / f"knee{suffix}", tmp_path / "ours"
    model = ULDA(sources=["brain"], width=2, depth=1, phases=2)
    model.domain = "brain"
    np.save(tmp_path / "images.npy", demo("knee").image(12)[48:64, 48:64].abs().numpy())
    ulda.reconstruction.reconstruct_file(model, tmp_path / "images.npy", out, undersampling=Undersampling(0.5))
    new_key(key)
    code, _, error = command("verify", out, "--key", f"{key}.pub")
    assert (code, "it is not signed" in error) == (1, True)
    assert command("sign", out, "--key", key)[0] == 0
    assert command("verify", out, "--key", f"{key}.pub")[0] == 0
    out.write_bytes(out.read_bytes() + b"x")
    code, _, error = command("verify", out, "--key", f"{key}.pub")
    assert code == 1
    assert out.name in error
    with pytest.raises(UldaError, match="not as it was written, so it is not signed"):
        sign_output(out, key)


def test_openssl_agrees(folder: Path) -> None:
    """An independent program reads the keys and accepts the signature; its own keys are read here."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is absent")
    sign_output(folder / "knee.h5", folder / "ours")
    with h5py.File(folder / "knee.h5") as file:
        signature, digest = json.loads(file.attrs["signature"]), json.loads(file.attrs["manifest"])["digest"]
    (folder / "message").write_text(f"ulda-manifest-1:{digest}")
    (folder / "value").write_bytes(bytes.fromhex(signature["signature"]))
    verifying = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", "ours.pub", "-rawin", "-in", "message"]
    subprocess.run([*verifying, "-sigfile", "value"], cwd=folder, check=True, capture_output=True)
    making = [openssl, "genpkey", "-algorithm", "ed25519", "-out", "made"]
    subprocess.run(making, cwd=folder, check=True, capture_output=True)
    telling = [openssl, "pkey", "-in", "made", "-pubout", "-out", "made.pub"]
    subprocess.run(telling, cwd=folder, check=True, capture_output=True)
    sign_output(folder / "knee.h5", folder / "made")
    with h5py.File(folder / "knee.h5") as file:
        assert signature_problem(digest, file.attrs["signature"], folder / "made.pub") == ""


def test_a_signature_does_not_fit_another_file(folder: Path, command: Command) -> None:
    """A file whose digests were all made anew is told from the signed one by its signature alone."""
    out = folder / "knee.h5"
    sign_output(out, folder / "ours")
    from ulda.solvers.manifest import write_manifest

    with h5py.File(out, "r+") as file:
        file.attrs["facts"] = json.dumps({"domain": "liver"})
        write_manifest(file)
    assert command("verify", out)[0] == 0
    code, _, error = command("verify", out, "--key", folder / "ours.pub")
    assert code == 1
    assert "the signature with ours.pub is not one of this file" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields | {"signature": "00" * 64}, "is not one of this file"),
        (lambda fields: fields | {"key": "00" * 32}, "it is signed with the key 66687aadf862bd77"),
        (lambda fields: fields | {"algorithm": "RSA"}, "not one of Ed25519"),
        (lambda fields: fields | {"signature": "no"}, "not of the expected form"),
        (lambda fields: {"key": fields["key"]}, "not of the expected form"),
        (lambda fields: [fields], "not of the expected form"),
    ],
)
def test_damaged_signatures_are_one_sentence(folder: Path, change: Any, message: str) -> None:
    sign_output(folder / "knee.h5", folder / "ours")
    with h5py.File(folder / "knee.h5") as file:
        signature, digest = json.loads(file.attrs["signature"]), json.loads(file.attrs["manifest"])["digest"]
    assert message in signature_problem(digest, json.dumps(change(signature)), folder / "ours.pub")


def test_keys_are_private_and_never_replaced(tmp_path: Path, command: Command) -> None:
    assert command("sign", "--new-key", tmp_path / "key")[0] == 0
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    code, _, error = command("sign", "--new-key", tmp_path / "key")
    assert (code, "exists already" in error) == (1, True)
    assert (tmp_path / "key").read_bytes() == before


def test_mistakes_are_one_sentence(folder: Path, command: Command) -> None:
    out = folder / "knee.h5"
    (folder / "text").write_text("no key")
    for arguments, message in (
        (("sign", out), "give an output and its --key"),
        (("sign", out, "--new-key", folder / "x"), "give an output and its --key"),
        (("sign", out, "--key", folder / "none"), "there is no file"),
        (("sign", out, "--key", folder / "text"), "text is not a private Ed25519 key"),
        (("sign", out, "--key", folder / "ours.pub"), "ours.pub is not a private Ed25519 key"),
        (("verify", out, "--key", folder / "ours"), "ours is not a public Ed25519 key"),
        (("sign", "--new-key", folder / "no" / "x"), "does not exist; create it first"),
    ):
        code, _, error = command(*arguments)
        assert code == 1
        assert message in error
        assert error.count("\n") == 1


def test_what_is_not_whole_is_not_signed(folder: Path) -> None:
    with h5py.File(folder / "knee.h5", "r+") as file:
        del file["runs/0/trace/phi"]
    before = (folder / "knee.h5").read_bytes()
    with pytest.raises(UldaError, match="not as it was written, so it is not signed: runs/0/trace/phi is missing"):
        sign_output(folder / "knee.h5", folder / "ours")
    assert (folder / "knee.h5").read_bytes() == before


def test_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for attempt in (
        lambda: new_key(folder / "x"),
        lambda: sign_output(folder / "knee.h5", folder / "ours"),
        lambda: signature_problem("", "", folder / "ours.pub"),
    ):
        with pytest.raises(UldaError, match=r'pip install "ulda\[sign\]"'):
            attempt()
