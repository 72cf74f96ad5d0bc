"""Every single change of what `ulda reconstruct` writes is found, and its place named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest

from benchmarks.tampered import forge
from benchmarks.tampering import Output, campaign, make_outputs, summary, unseen
from ulda.solvers import verify_output
from ulda.solvers.outputs import check_parts

CHANGES, FORGED = 2000, 150

NIFTI: Any = nibabel.Nifti1Image
MIRROR = np.diag([-1.0, 1, 1, 1])
"""Left becomes right."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Output]:
    made = make_outputs(tmp_path_factory.mktemp("outputs"))
    return {output.name.removeprefix("knee"): output for output in made}


def test_two_thousand_random_changes_are_found(tmp_path: Path) -> None:
    outcomes = list(campaign(tmp_path, CHANGES, FORGED, seed=1))
    plain = [one for one in outcomes if not one.forged]
    assert len(plain) == CHANGES
    assert [one for one in plain if not one.said] == []
    assert [one for one in plain if not one.named] == []
    # without digests to give it away, what is not found is what the page says no replay can find
    assert [one for one in outcomes if one.forged and not one.said and not unseen(one.change)] == []
    assert all(row["plain"] > 100 for row in summary(outcomes)["formats"])


def test_what_was_not_changed_is_verified(outputs: dict[str, Output], tmp_path: Path) -> None:
    for output in outputs.values():
        checked = verify_output(output.write(tmp_path))
        assert checked.verdict.problems == ()
        assert checked.verdict.ok


def _fact(file: h5py.File, **changes: str) -> None:
    file.attrs["facts"] = json.dumps(json.loads(file.attrs["facts"]) | changes)


def _mask(file: h5py.File) -> None:
    fields = json.loads(file["runs/0"].attrs["mask"])
    file["runs/0"].attrs["mask"] = json.dumps(fields | {"seed": fields["seed"] + 1})


def _twice(file: h5py.File) -> None:
    for name in ("image", "scale"):
        file[name][()] = 2 * file[name][()]


def _without_images(file: h5py.File) -> None:
    del file["image"], file["scale"]


def _trace(file: h5py.File) -> None:
    file["runs/0/trace/phi"][()] = file["runs/0/trace/phi"][()] * 0.9


def _without_trace(file: h5py.File) -> None:
    del file["runs/0/trace"]


def _lower_objective(file: h5py.File) -> None:
    """Claim less of the last objective, in the certificate and in the trace."""
    certificate = json.loads(file["runs/0"].attrs["certificate"])
    steps = certificate["samples"][0]["iterations"]
    steps[-1]["phi"] *= 0.99
    file["runs/0/trace/phi"][len(steps) - 1, 0] = steps[-1]["phi"]
    file["runs/0"].attrs["certificate"] = json.dumps(certificate)


CASES: dict[str, tuple[Callable[[h5py.File], None], list[str], str]] = {
    "image and scale multiplied": (_twice, ["image was changed", "scale was changed"], ""),
    "image and scale left out": (_without_images, ["image is missing", "scale is missing"], ""),
    "input": (lambda file: _fact(file, input="other.h5"), ["the facts of the file was changed"], ""),
    "base": (lambda file: _fact(file, base="0" * 64), ["the facts of the file was changed"], ""),
    "domain": (lambda file: _fact(file, domain="liver"), ["the facts of the file was changed"], ""),
    "mask": (_mask, ["the mask of runs/0 was changed"], ""),
    "trace": (_trace, ["runs/0/trace/phi was changed", "phi of the trace"], "phi of the trace"),
    "trace left out": (_without_trace, ["the trace is missing", "runs/0/trace is missing"], "the trace is missing"),
    "objective": (_lower_objective, ["the certificate of runs/0 was changed"], "phi is"),
}
"""Changes that fit together: what is said of each, and what the replay says where all digests are made anew."""


@pytest.mark.parametrize("case", CASES)
def test_changes_that_fit_together(case: str, outputs: dict[str, Output], tmp_path: Path) -> None:
    change, said, of_replay = CASES[case]
    out = outputs[".h5"].write(tmp_path)
    with h5py.File(out, "r+") as file:
        change(file)
    problems = "; ".join(verify_output(out).verdict.problems)
    for sentence in said:
        assert sentence in problems
    forge(out, [])
    verdict = verify_output(out).verdict
    assert verdict.ok == (not of_replay)
    assert of_replay in "; ".join(verdict.problems)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_mirrored_header_is_found(suffix: str, outputs: dict[str, Output], tmp_path: Path) -> None:
    out = outputs[suffix].write(tmp_path)
    image: Any = nibabel.load(out)
    pixels, affine = np.asarray(image.dataobj).copy(), MIRROR @ image.affine
    nibabel.save(NIFTI(pixels, affine, image.header), out)
    problems = verify_output(out).verdict.problems
    assert len(problems) == 1
    assert f"the header of {out.name} says" in problems[0]
    with h5py.File(tmp_path / outputs[suffix].run_name) as file:
        np.testing.assert_allclose(MIRROR @ json.loads(file.attrs["manifest"])["images"]["affine"], affine)


def test_a_retouched_image_is_found_without_digests(outputs: dict[str, Output], tmp_path: Path) -> None:
    """The pixels of images in other formats follow from the run, so no digest is needed to tell."""
    for suffix in (".npy", ".nii", ".png"):
        output = outputs[suffix]
        out = output.write(tmp_path)
        _retouch(tmp_path / output.images[-1])
        forge(tmp_path / output.run_name, [tmp_path / name for name in output.images])
        assert "is not the image of the run: slice" in verify_output(out).verdict.problems[0]


def _retouch(path: Path) -> None:
    from PIL import Image

    if path.suffix == ".npy":
        array: Any = np.load(path)
        array[0, 3, 4] *= 1.001
        np.save(path, array)
    elif path.suffix == ".png":
        array = np.asarray(Image.open(path)).copy()
        array[3, 4] ^= 3
        Image.fromarray(array).save(path)
    else:
        image: Any = nibabel.load(path)
        array = np.asarray(image.dataobj).copy()
        array[3, 4, 0] *= 1.001
        nibabel.save(NIFTI(array, image.affine, image.header), path)


def test_text_in_another_form_is_another_part(outputs: dict[str, Output], tmp_path: Path) -> None:
    """HDF5 has text and bytes; neither they nor what JSON does not know stop the comparison."""
    out = outputs[".h5"].write(tmp_path)
    with h5py.File(out, "r+") as file:
        file.attrs["facts"] = np.bytes_(file.attrs["facts"].encode())
        file.attrs["empty"] = h5py.Empty("f4")
    assert check_parts(out).problems == (
        "the empty of the file is not covered by the manifest",
        "the facts of the file was changed after the file was written",
    )


@pytest.mark.parametrize("name", ["y", "x", "x0", "maps"])
def test_arrays_that_do_not_fit_are_one_sentence(name: str, outputs: dict[str, Output], tmp_path: Path) -> None:
    from ulda.errors import UldaError

    output = outputs[".npy" if name == "maps" else ".h5"]
    out = output.write(tmp_path)
    with h5py.File(tmp_path / output.run_name, "r+") as file:
        values = file[f"runs/0/{name}"][()]
        del file[f"runs/0/{name}"]
        file[f"runs/0/{name}"] = values[..., :-1]
    with pytest.raises(UldaError, match=r"its array \w+ holds complex64 of shape .* but its result needs"):
        verify_output(out)
