"""Seeded mutations of files: of their bytes, and of what their format is made of."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

Mutation = Callable[[bytes, random.Random], bytes]

TEXTS = (
    "",
    "\x1b[31mred\x1b[0m",
    "a\x00b",
    "\ud7ff\u202e",
    "../../etc/passwd",
    "x" * 10_000,
    "NaN",
    "unadapted",
    "%s{0}",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    10**6,
    2**31,
    2**63,
    10**30,
    -(2**63),
    0.5,
    -0.0,
    1e-300,
    1e300,
    3e38,
    float("nan"),
    float("inf"),
)
FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-40)
SIZES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def mutate(name: str, content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return the bytes of a file with one mutation, and the name of the mutation."""
    possible = [*_BYTES, *_of_format(name, content) * 2]
    mutation = rng.choice(possible)
    with contextlib.suppress(Exception):
        # a mutation of a format that the seed has not is none; the bytes are mutated instead
        return mutation(content, rng), mutation.__name__.strip("_")
    return _bits(content, rng), "bits"


def _of_format(name: str, content: bytes) -> list[Mutation]:
    if b"\x89HDF" in content[:1024]:
        return [_hdf5_number, _hdf5_shape, _hdf5_attribute, _hdf5_removed, _hdf5_link, _hdf5_json]
    if content.startswith(b"\x1f\x8b"):
        return [_gzipped, _gzip_bomb]
    if content.startswith(b"PK"):
        return [_zipped]
    if name.endswith(".safetensors"):
        return [_tensor_header, _floats]
    if name.endswith((".json", ".ismrmrd")):
        return [_json_field, _json_nesting, _json_field]
    if name.endswith((".yaml", ".yml")):
        return [_yaml_line, _yaml_nesting, _yaml_aliases, _text]
    if name.endswith((".csv", ".txt", ".hdr", ".pem", ".pub")):
        return [_text, _yaml_line]
    return [_floats, _sizes]


def _bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    # headers say more than pixels
    end = len(changed) if rng.random() < 0.5 else min(512, len(changed))
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.choice((0, 1, rng.randrange(len(content) + 1), max(0, len(content) - 1)))]


def _sizes(content: bytes, rng: random.Random) -> bytes:
    """Write an extreme number of 1, 2, 4 or 8 bytes somewhere, most often in the header."""
    value, order = rng.choice(SIZES), rng.choice("<>")
    code = rng.choice(
        [code for code, most in zip("BHIQ", (0xFF, 0xFFFF, 2**32 - 1, 2**64 - 1), strict=True) if value <= most]
    )
    packed = struct.pack(order + code, value)
    end = max(1, min(len(content), rng.choice((64, 512, len(content)))) - len(packed))
    place = rng.randrange(end)
    return content[:place] + packed + content[place + len(packed) :]


def _inserted(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.choice((1, 4, 100))) + content[place:]


def _zeros(content: bytes, rng: random.Random) -> bytes:
    place, size = rng.randrange(len(content) + 1), rng.choice((1, 16, 512))
    return content[:place] + bytes(len(content[place : place + size])) + content[place + size :]


def _floats(content: bytes, rng: random.Random) -> bytes:
    """Replace a number of four or eight bytes in the pixels."""
    code = rng.choice(("<f", "<d", ">f"))
    packed = struct.pack(code, rng.choice(FLOATS))
    place = rng.randrange(max(1, len(content) // 4)) * 4
    return content[:place] + packed + content[place + len(packed) :]


_BYTES: list[Mutation] = [_bits, _truncated, _sizes, _inserted, _zeros]


def _hdf5(content: bytes, change: Callable[[h5py.File], None]) -> bytes:
    stream = io.BytesIO(content)
    with h5py.File(stream, "r+") as file:
        change(file)
    return stream.getvalue()


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def _hdf5_number(content: bytes, rng: random.Random) -> bytes:
    def change(file: h5py.File) -> None:
        place = file[rng.choice(_datasets(file))]
        index = tuple(rng.randrange(n) for n in place.shape)
        kind = place.dtype.kind
        place[index] = (
            rng.choice(TEXTS) if kind == "O" else rng.choice(FLOATS) if kind in "fc" else rng.choice((0, -1, 2))
        )

    return _hdf5(content, change)


def _hdf5_shape(content: bytes, rng: random.Random) -> bytes:
    """Declare another shape or type; the largest hold nothing, since HDF5 keeps empty blocks nowhere."""

    def change(file: h5py.File) -> None:
        name = rng.choice(_datasets(file))
        old, kind = file[name], rng.choice(("huge", "empty", "axis", "less", "type", "text", "scalar"))
        values = np.asarray(old[()])
        shape, dtype = old.shape, old.dtype
        del file[name]
        if kind == "huge":
            sides = tuple(rng.choice((n, 2**20, 2**31)) for n in shape) or (2**31,)
            file.create_dataset(name, sides, dtype, chunks=tuple(min(64, n) for n in sides))
        elif kind in ("empty", "less"):
            file[name] = values[:0] if kind == "empty" else values[:-1]
        elif kind == "type":
            file[name] = values.astype(rng.choice(("f8", "i1", "u2", "c16", "f2")))
        else:
            file[name] = {"axis": values[None], "text": rng.choice(TEXTS[1:2] + TEXTS[3:]), "scalar": 1.5}[kind]

    return _hdf5(content, change)


def _hdf5_attribute(content: bytes, rng: random.Random) -> bytes:
    def change(file: h5py.File) -> None:
        places = [("/", name) for name in file.attrs]
        file.visititems(lambda path, item: places.extend((path, name) for name in item.attrs))
        path, name = rng.choice(places)
        _replace_attribute(file[path].attrs, name, rng)

    return _hdf5(content, change)


def _replace_attribute(attributes: Any, name: str, rng: random.Random) -> None:
    kind = rng.choice(("removed", "text", "number", "bytes", "array", "empty"))
    del attributes[name]
    if kind == "text":
        attributes[name] = rng.choice([text for text in TEXTS if "\0" not in text])
    elif kind == "number":
        attributes[name] = np.float64(rng.choice(NUMBERS))
    elif kind == "bytes":
        attributes[name] = np.bytes_(b"\xff\xfe\x1b[31m")
    elif kind == "array":
        attributes[name] = np.arange(12.0).reshape(3, 4)
    elif kind == "empty":
        attributes[name] = h5py.Empty("f4")


def _hdf5_json(content: bytes, rng: random.Random) -> bytes:
    """Change a field of a JSON text in an attribute."""

    def change(file: h5py.File) -> None:
        places = [("/", name) for name in file.attrs]
        file.visititems(lambda path, item: places.extend((path, name) for name in item.attrs))
        texts = [place for place in places if str(file[place[0]].attrs[place[1]])[:1] in "{["]
        path, name = rng.choice(texts)
        text = file[path].attrs[name].encode()
        mutation = rng.choice((_json_field, _json_field, _json_nesting))
        file[path].attrs[name] = mutation(text, rng).decode()

    return _hdf5(content, change)


def _hdf5_removed(content: bytes, rng: random.Random) -> bytes:
    def change(file: h5py.File) -> None:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        is_group = isinstance(file[name], h5py.Group)
        del file[name]
        if rng.random() < 0.3:
            file[name] = np.zeros(3)
        elif rng.random() < 0.3 and not is_group:
            file.create_group(name)

    return _hdf5(content, change)


def _hdf5_link(content: bytes, rng: random.Random) -> bytes:
    """Replace a part by a link: to nothing, to itself, to another file, or by data in another file."""

    def change(file: h5py.File) -> None:
        name = rng.choice(_datasets(file))
        shape = file[name].shape
        del file[name]
        kind = rng.choice(("soft", "loop", "external", "storage"))
        if kind == "storage":
            file.create_dataset(name, shape, "u1", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
        else:
            links = {"soft": h5py.SoftLink("/nowhere"), "loop": h5py.SoftLink(f"/{name}")}
            file[name] = links.get(kind) or h5py.ExternalLink("other.h5", "/")

    return _hdf5(content, change)


def _json_field(content: bytes, rng: random.Random) -> bytes:
    document = json.loads(content)
    *above, last = rng.choice(list(_places(document)))
    place = document
    for key in above:
        place = place[key]
    kind = rng.choice(("value", "value", "value", "removed", "list", "name"))
    if kind == "removed":
        del place[last]
    elif kind == "list":
        place[last] = [place[last]] * rng.choice((0, 1, 1000))
    elif kind == "name" and isinstance(place, dict):
        place[rng.choice(TEXTS)] = place.pop(last)
    else:
        place[last] = rng.choice((*NUMBERS, *TEXTS, True, None, [], {}))
    return json.dumps(document).encode()


def _places(document: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if keys:
        yield keys
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from _places(value, (*keys, key))


def _json_nesting(content: bytes, rng: random.Random) -> bytes:
    """Put a hundred thousand lists into each other, in the place of a value or of the whole."""
    depth = rng.choice((500, 100_000))
    deep = b"[" * depth + b"]" * depth
    places = [match.end() for match in re.finditer(rb":\s*", content)]
    place = rng.choice(places) if places and rng.random() < 0.8 else 0
    end = re.search(rb"[,}\]]", content[place:])
    return content[:place] + deep + content[place + (end.start() if end else 0) :]


def _yaml_line(content: bytes, rng: random.Random) -> bytes:
    """Replace the value of a line."""
    lines = content.decode(errors="replace").splitlines()
    number = rng.randrange(len(lines))
    head, colon, _ = lines[number].partition(":")
    values = (
        *map(str, NUMBERS),
        *TEXTS,
        "2024-01-01",
        "!!python/object:os.system",
        "[1, 2",
        "~",
        "? [1]\n: 2",
        "0x_",
        "*a",
    )
    lines[number] = f"{head}{colon} {rng.choice((*values, '.nan', '-.inf', '12:30:45', '1' * 5000, 'yes', '{}', '[]'))}"
    return "\n".join(lines).encode(errors="replace")


def _yaml_nesting(content: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((500, 100_000))
    return content + b"\nnote: " + rng.choice((b"[", b"{a: ", b"- ")) * depth


def _yaml_aliases(content: bytes, rng: random.Random) -> bytes:
    """Append lists of lists of aliases that stand for 10 to the power of 9 values."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    place = rng.choice(("name", "card", "network"))
    return content + "\n".join(["", *lines, f"{place}: *a8"]).encode()


def _text(content: bytes, rng: random.Random) -> bytes:
    words = content.split(b" ")
    words[rng.randrange(len(words))] = rng.choice([str(value).encode() for value in (*NUMBERS, *TEXTS)] + [b"\xff\xfe"])
    return b" ".join(words)


def _gzipped(content: bytes, rng: random.Random) -> bytes:
    inner = gzip.decompress(content)
    return gzip.compress(rng.choice((_bits, _sizes, _floats, _truncated))(inner, rng), mtime=0)


def _gzip_bomb(content: bytes, rng: random.Random) -> bytes:
    """Append gigabytes of zeros, a thousandth of that when compressed."""
    del rng
    return content + _BOMB


_BOMB = b"".join([gzip.compress(bytes(2**24), mtime=0)] * 160)


def _zipped(content: bytes, rng: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    members[name] = rng.choice((_bits, _sizes, _floats, _truncated))(members[name], rng)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return stream.getvalue()


def _tensor_header(content: bytes, rng: random.Random) -> bytes:
    """Change the JSON header of a safetensors file, whose length stands before it."""
    (size,) = struct.unpack("<Q", content[:8])
    header = _json_field(content[8 : 8 + size], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]
