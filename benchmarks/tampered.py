"""Single changes of outputs: what can be changed in them, random changes of it, and forged digests.

A run file has parts (arrays, attributes, groups) and, in attributes of JSON, fields. Images beside it are bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np

from ulda.errors import UldaError
from ulda.io.fingerprints import digest
from ulda.solvers import Run
from ulda.solvers.certificate import fingerprints_of
from ulda.solvers.manifest import MANIFEST, write_manifest
from ulda.solvers.record_reader import load_runs


@dataclass(frozen=True)
class Change:
    """One change: the part of a run file or the name of an image file, the field in it, and what is done to it.

    Attributes
    ----------
    part
        ``path`` of an array or a group, ``path@name`` of an attribute, or the name of an image file.
    field
        The keys to a field of JSON, or an index into an array; None for the part as a whole.
    kind
        Of parts ``value``, ``removed``, ``added``, ``type``, ``shape``; of images ``bit``, ``byte``, ``cut``,
        ``added``, ``missing``.
    """

    part: str
    field: tuple[Any, ...] | None
    kind: str

    @property
    def named(self) -> str:
        """What a sentence about the change must hold."""
        return self.part.rpartition("@")[2] if "@" in self.part else self.part

    @property
    def topic(self) -> str:
        """The part without the number of its run, the keys of the field, and the kind."""
        name = re.sub(r"runs/\d+", "runs", self.part)
        keys = [str(key) for key in self.field or () if isinstance(key, str)]
        return " ".join([".".join([name, *keys]) if "@" in self.part else name, self.kind])


def parts_of(file: h5py.File) -> list[str]:
    """Return all arrays and attributes of a run file, without its manifest."""
    found = [f"@{name}" for name in file.attrs]

    def add(path: str, item: h5py.HLObject) -> None:
        found.extend(f"{path}@{name}" for name in item.attrs)
        if isinstance(item, h5py.Dataset):
            found.append(path)

    file.visititems(add)
    return found


def _field(document: Any, rng: random.Random) -> tuple[Any, ...]:
    """Draw the keys to a leaf of a JSON document, step by step, so that long lists do not hide short ones."""
    keys: tuple[Any, ...] = ()
    while isinstance(document, dict | list) and document:
        key = rng.choice(list(document)) if isinstance(document, dict) else rng.randrange(len(document))
        keys, document = (*keys, key), document[key]
    return keys


def draw(file: h5py.File, part: str, rng: random.Random) -> Change:
    """Draw a change of a part."""
    path, at, name = part.rpartition("@")
    if not at:
        kind = rng.choices(("value", "removed", "type", "shape", "added"), (12, 1, 1, 1, 1))[0]
        index = tuple(rng.randrange(n) for n in file[part].shape) if kind == "value" else None
        return Change(part, index, "type" if kind == "shape" and not file[part].shape else kind)
    document = _document(file[path or "/"].attrs[name])
    kind = rng.choices(("value", "removed", "type", "added"), (12, 2, 1, 1))[0]
    if not isinstance(document, dict) or kind == "type" or (kind != "value" and rng.random() < 0.3):
        return Change(part, None, kind)
    return Change(part, _field(document, rng), kind)


def _document(value: Any) -> Any:
    """Return what the text of an attribute says as JSON; None for anything else."""
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return None


def apply(file: h5py.File, change: Change, rng: random.Random) -> None:
    """Make a change in an open file."""
    path, at, name = change.part.rpartition("@")
    if at:
        _change_attribute(file[path or "/"].attrs, name, change, rng)
    else:
        _change_array(file, change, rng)


def _change_array(file: h5py.File, change: Change, rng: random.Random) -> None:
    part, values = change.part, file[change.part][()]
    if change.kind == "value":
        file[part][change.field or ()] = another_number(values[change.field or ()], rng)
        return
    if change.kind == "added":
        file[f"{part}-2"] = values
        return
    del file[part]
    if change.kind == "type":
        wider = {"c": np.complex128, "f": np.float64, "i": np.int64}[values.dtype.kind]
        file[part] = values.astype(wider if values.dtype != wider else np.float32)
    elif change.kind == "shape":
        file[part] = values[:-1] if rng.random() < 0.5 else values[None]


def _change_attribute(attributes: Any, name: str, change: Change, rng: random.Random) -> None:
    value = attributes[name]
    if change.kind == "added" and change.field is None:
        attributes[f"{name}-2"] = value
    elif change.kind == "removed" and change.field is None:
        del attributes[name]
    elif change.kind == "type":
        attributes[name] = np.bytes_(value.encode()) if isinstance(value, str) else str(value)
    elif change.field is None:
        attributes[name] = _another_attribute(value, rng)
    else:
        document = json.loads(value)
        *above, last = change.field
        place = document
        for key in above:
            place = place[key]
        if change.kind == "removed":
            del place[last]
        elif change.kind == "added":
            place.update(note="trust me") if isinstance(place, dict) else place.append(place[last])
        else:
            place[last] = _another_value(place[last], rng)
        attributes[name] = json.dumps(document)


def _another_attribute(value: Any, rng: random.Random) -> Any:
    if isinstance(value, str):
        return _another_text(value, rng)
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, np.ndarray):
        return [_another_text(str(word), rng) if i == 0 else str(word) for i, word in enumerate(value)]
    return value + 1


def _another_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1))
    if isinstance(value, float):
        return float(another_number(np.float64(value), rng))
    return _another_text(value, rng) if isinstance(value, str) else 0


def _another_text(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text)) if text else 0
    letter = rng.choice([letter for letter in "abcxyz019" if letter != text[place : place + 1]])
    return text[:place] + letter + text[place + 1 :]


def another_number(value: Any, rng: random.Random) -> Any:
    """Return a number that differs from another: by 1e-7 to 10 of its size, in its sign, or in one bit."""
    array = np.asarray(value)
    changed = array
    while changed.tobytes() == array.tobytes():
        choice = rng.randrange(4)
        if choice == 0 or array.dtype.kind == "i":
            raw = bytearray(array.tobytes())
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            changed = np.frombuffer(bytes(raw), array.dtype)[0]
        elif choice == 1:
            changed = np.asarray(-array if array else array + 1).astype(array.dtype)
        else:
            changed = np.asarray(array * (1 + 10 ** rng.uniform(-7, 1))).astype(array.dtype)
    return changed


def change_bytes(content: bytes, kind: str, rng: random.Random) -> bytes:
    """Return the bytes of an image with one bit changed, one pixel or header byte replaced, or without an end."""
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    if kind == "added":
        return content + bytes([rng.randrange(256)])
    changed, place = bytearray(content), rng.randrange(len(content))
    changed[place] = changed[place] ^ (1 << rng.randrange(8)) if kind == "bit" else (changed[place] + 1) % 256
    return bytes(changed)


def forge(path: Path, images: Iterable[Path]) -> None:
    """Make all digests of an output anew, as somebody would do who wants a change to go unseen.

    They are the fingerprints and the digest of each certificate, those of the images, and the manifest.
    """
    try:
        certificates = [_forged(run) for run in load_runs(path)]
    except UldaError:
        certificates = []
    with h5py.File(path, "r+") as file:
        for number, certificate in enumerate(certificates):
            file[f"runs/{number}"].attrs["certificate"] = json.dumps(certificate)
        record = json.loads(file.attrs[MANIFEST])["images"]
        if record is not None:
            record |= _stated(list(images), record["affine"])
        write_manifest(file, record)


def _stated(images: list[Path], affine: Any) -> dict[str, Any]:
    """Return what a manifest is to say of image files as they are now: their SHA-256, and the affine of NIfTI."""
    with contextlib.suppress(Exception):
        # anything may be wrong with a changed header
        image: Any = nibabel.load(images[0])
        affine = image.affine.tolist()
    return {"affine": affine, "sha256": [hashlib.sha256(i.read_bytes()).hexdigest() for i in images if i.exists()]}


def _forged(run: Run) -> dict[str, Any]:
    given = run.x0 if run.certificate.get("start") == "given" else None
    found = fingerprints_of(run.y, run.physics, run.regularizer, run.x, given)
    content = {key: value for key, value in run.certificate.items() if key != "digest"} | {"fingerprints": found}
    return content | {"digest": digest(content)}
