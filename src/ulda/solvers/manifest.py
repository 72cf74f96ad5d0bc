"""The manifest of a run file: the SHA-256 of every part of it, and of the images that were written beside it.

A certificate speaks of one run. The manifest binds all that a file holds: the certificates, facts, masks, traces,
images and scales. Its digest is what `ulda sign` signs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ulda.errors import UldaError
from ulda.io.documents import parse_json
from ulda.io.fingerprints import digest
from ulda.io.parts import fingerprint_parts
from ulda.solvers.batch import BRANCHES
from ulda.solvers.trace import trace_arrays

FORMAT = "ulda-manifest"
VERSION = 1

MANIFEST, SIGNATURE = "manifest", "signature"
"""The attributes of the file that hold the manifest and its signature; they alone are no parts."""

ENTRIES = ("format", "version", "parts", "images", "digest")

MOST_NAMED = 5
"""More parts than a person wants to have named."""


def write_manifest(file: h5py.File, images: Mapping[str, Any] | None = None) -> None:
    """Write the manifest of an open file, once all else is in it.

    Parameters
    ----------
    file
        The run file.
    images
        What `ulda.data.image_output.save_images` returned of the images beside it.
    """
    content = {"format": FORMAT, "version": VERSION, "parts": _parts(file), "images": images}
    file.attrs[MANIFEST] = json.dumps(content | {"digest": digest(content)})


@dataclass(frozen=True)
class CheckedManifest:
    """A manifest, compared with what its file holds.

    Attributes
    ----------
    problems
        One sentence per disagreement; empty where every part is as it was written, and none is missing or new.
    digest
        The SHA-256 of the manifest, as it is on record.
    images
        What it says of the images beside the file; None where there were none.
    signature
        The signature of the digest as it is in the file, unchecked; empty where there is none.
    """

    problems: tuple[str, ...]
    digest: str = ""
    images: Any = None
    signature: str = ""


def check_manifest(file: h5py.File, n_bytes: int) -> CheckedManifest:
    """Compare every part of an open file of `n_bytes` bytes with its manifest."""
    if MANIFEST not in file.attrs:
        return CheckedManifest(("the manifest is missing, so nothing tells whether the file is whole",))
    stored = file.attrs[MANIFEST]
    try:
        manifest = parse_json(stored, "the manifest")
    except UldaError:
        manifest = None
    if (
        not isinstance(stored, str)
        or not isinstance(manifest, dict)
        or (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION)
        or set(manifest) != set(ENTRIES)
        or not isinstance(manifest["parts"], dict)
    ):
        return CheckedManifest((f"the manifest is not one of version {VERSION} of {FORMAT}",))
    content = {key: value for key, value in manifest.items() if key != "digest"}
    problems = _other_parts(manifest["parts"], _parts(file, n_bytes))
    if len(problems) > MOST_NAMED:
        problems[MOST_NAMED:] = [f"and {len(problems) - MOST_NAMED} more parts of the file"]
    if manifest["digest"] != digest(content):
        problems.insert(0, "the digest of the manifest does not match: it was changed after it was made")
    signature = str(file.attrs.get(SIGNATURE, ""))
    return CheckedManifest(tuple(problems), str(manifest["digest"]), manifest["images"], signature)


def trace_problem(group: h5py.Group | None, certificate: Mapping[str, Any]) -> str:
    """Say in one sentence where a trace is not what the certificate of its run says; empty if it is."""
    if group is None:
        return "the trace is missing"
    try:
        return next(_trace_problems(group, certificate), "")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"the trace cannot be compared with the certificate ({type(error).__name__}: {error})"


def _trace_problems(group: h5py.Group, certificate: Mapping[str, Any]) -> Iterator[str]:
    records = [sample["iterations"] for sample in certificate["samples"]]
    shape = (max(map(len, records)), len(records))
    # the arrays at hand fit into the file; what the certificate claims may be any size
    found = dict(group.items())
    if any(dataset.shape != shape for dataset in found.values()):
        yield f"the trace does not have the {shape[0]} iterations of {shape[1]} samples that the certificate has"
        return
    expected = trace_arrays(records)
    if set(found) != set(expected):
        yield "the trace does not have the expected arrays"
        return
    for name, array in expected.items():
        if found[name].dtype != array.dtype or not np.array_equal(
            found[name][()], array, equal_nan=array.dtype.kind == "f"
        ):
            yield f"{name} of the trace is not what the certificate says"
    if group.attrs["branches"].tolist() != list(BRANCHES):
        yield "the trace does not name its branches as expected"
    for name in ("options", "proposal"):
        if digest({name: parse_json(group.attrs[name], name)}) != digest({name: certificate[name]}):
            yield f"the {name} of the trace are not what the certificate says"


def _parts(file: h5py.File, n_bytes: float = float("inf")) -> dict[str, str]:
    return fingerprint_parts(file, without=(MANIFEST, SIGNATURE), most=n_bytes)


def _other_parts(listed: dict[str, Any], found: dict[str, str]) -> list[str]:
    return (
        [f"{_named(path)} is missing" for path in listed if path not in found]
        + [f"{_named(path)} is not covered by the manifest" for path in found if path not in listed]
        + [
            f"{_named(path)} was changed after the file was written"
            for path, sha in found.items()
            if path in listed and listed[path] != sha
        ]
    )


def _named(path: str) -> str:
    place, at, name = path.rpartition("@")
    return f"the {name} of {place or 'the file'}" if at else path
