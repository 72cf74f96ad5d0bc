from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import nibabel
import pytest

from ulda.errors import UldaError, escaped
from ulda.io.compressed import gunzip
from ulda.io.untrusted import Walk, check_expansion, read_bytes, read_text, reading, regular_file, saying


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        KeyError("kspace"),
        RuntimeError("unable to open"),
        RecursionError("too deep"),
        OverflowError("too large"),
        ValueError("embedded null byte"),
        MemoryError(),
        SyntaxError("broken PNG file"),
        AttributeError("no such element"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        struct.error("unpack requires a buffer of 4 bytes"),
        zlib.error("Error -3"),
        zipfile.BadZipFile("File is not a zip file"),
        nibabel.filebasedimages.ImageFileError("no NIfTI"),
        DeprecationWarning("old"),
    ],
)
def test_errors_of_every_library_become_one_sentence(error: Exception) -> None:
    with (
        pytest.raises(UldaError, match=r"^folder/a\.h5 cannot be read as fastMRI HDF5 ") as raised,
        reading("folder/a.h5", "fastMRI HDF5"),
    ):
        raise error
    assert "\n" not in str(raised.value)


def test_sentences_and_mistakes_of_ours_pass() -> None:
    with pytest.raises(UldaError, match=r"^it is a sentence$"), reading("a", "b"):
        raise UldaError("it is a sentence")
    with (
        pytest.raises(UldaError, match=r"^a\.h5 cannot be read as a run file: it has no x$"),
        saying("x/a.h5", "a run file"),
    ):
        raise UldaError("it has no x")

    class NobodysError(Exception):
        pass

    with pytest.raises(NobodysError), reading("a", "b"):
        raise NobodysError
    with pytest.raises(KeyboardInterrupt), reading("a", "b"):
        raise KeyboardInterrupt


def test_sentences_show_control_characters() -> None:
    assert str(UldaError("knee\x1b]0;title\x07\r\n\x9b2J\u202eabc")) == (r"knee\x1b]0;title\x07\x0d\x0a\x9b2J\u202eabc")
    assert escaped("Zürich – 3 T \udcff") == r"Zürich – 3 T \udcff"


def test_files_that_are_none_or_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfknee")
    assert read_text(tmp_path / "a.txt", "text") == "knee"
    with pytest.raises(UldaError, match="has more than 3 bytes, too much for a table"):
        read_bytes(tmp_path / "a.txt", "a table", 3)
    with pytest.raises(UldaError, match="/dev/zero is a device or a pipe"):
        read_bytes("/dev/zero", "a table")
    with pytest.raises(UldaError, match="is no path of a file"):
        regular_file("a" * 5000)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UldaError, match="expected text in UTF-8"):
        read_text(tmp_path / "a.txt", "a table")


def test_what_may_be_packed_tightly_is_small() -> None:
    check_expansion("a.h5", "its mask", 60 * 10**6, 10)
    check_expansion("a.h5", "its images", 2 * 10**9, 10**8)
    with pytest.raises(UldaError, match="its images claims 2 GB, but only 1 MB are stored"):
        check_expansion("a.h5", "its images", 2 * 10**9, 10**6)


def test_gzip_that_grows_or_ends_early_is_refused() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([packer.compress(bytes(10**6)) for _ in range(100)] + [packer.flush()])
    for content in (bomb, bomb[:1000], b"\x1f\x8b no gzip"):
        with pytest.raises(ValueError, match="its gzip is"):
            gunzip(content)


def test_a_walk_sees_a_folder_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    walk = Walk(tmp_path)
    assert [child.name for child in walk.children(tmp_path)] == ["a"]
    assert [child.name for child in walk.children(tmp_path / "a")] == ["up"]
    assert walk.children(tmp_path / "a" / "up") == []
