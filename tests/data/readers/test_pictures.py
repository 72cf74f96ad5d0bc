from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from ulda.data.readers import find_reader
from ulda.data.readers.pictures import PicturesReader
from ulda.errors import UldaError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("a.png", np.uint8), ("a.png", np.uint16), ("a.tif", np.uint16), ("a.tif", np.float32)],
)
def test_grey_pictures_keep_their_depth(tmp_path: Path, name: str, dtype: type[np.generic]) -> None:
    values = (np.arange(12).reshape(3, 4) * 20).astype(dtype)
    if dtype == np.uint16:
        values = values * np.uint16(250)
    Image.fromarray(values).save(tmp_path / name)
    (item,) = find_reader(tmp_path / name).slices(tmp_path / name)
    np.testing.assert_array_equal(item.array, values.astype(np.float32))
    assert item.kind == "magnitude"
    assert item.array.dtype == np.float32


def test_colour_becomes_luminance(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 10, 10]]], np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    (item,) = PicturesReader().slices(tmp_path / "a.png")
    np.testing.assert_allclose(np.asarray(item.array, np.float32), [[76.245, 149.685], [29.07, 10]], rtol=1e-5)


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1"])
def test_other_modes_of_a_white_picture_are_white(tmp_path: Path, mode: str) -> None:
    Image.new("L", (4, 3), 255).convert("RGB" if mode == "P" else "L").convert(mode).save(tmp_path / "a.png")
    (item,) = PicturesReader().slices(tmp_path / "a.png")
    np.testing.assert_allclose(np.asarray(item.array, np.float32), np.full((3, 4), 255), rtol=1e-6)


def test_jpeg_is_close(tmp_path: Path) -> None:
    y, x = np.mgrid[0:32, 0:32]
    values = (4 * x + 3 * y).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.jpg", quality=95)
    (item,) = PicturesReader().slices(tmp_path / "a.jpg")
    np.testing.assert_allclose(np.asarray(item.array, np.float32), values, atol=6)


def test_folder_in_natural_order_without_the_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "scan"
    folder.mkdir()
    for number in (10, 2, 1):
        Image.new("L", (4, 4), number).save(folder / f"img{number}.png")
    (folder / "notes.txt").write_text("not a picture")
    reader = find_reader(folder)
    slices = list(reader.slices(folder))
    assert [item.source for item in slices] == ["img1.png", "img2.png", "img10.png"]
    assert [float(item.array[0, 0]) for item in slices] == [1, 2, 10]
    assert {(item.subject, item.volume) for item in slices} == {("scan", "scan")}
    assert reader.describe(folder).n_slices == 3


def test_pages_of_a_tiff(tmp_path: Path) -> None:
    pages = [Image.new("L", (4, 4), value) for value in (3, 1, 2)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert [float(item.array[0, 0]) for item in PicturesReader().slices(tmp_path / "a.tif")] == [3, 1, 2]


@pytest.mark.parametrize("limit", ["PIL.Image.MAX_IMAGE_PIXELS", "ulda.io.pictures.MOST_PIXELS"])
def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    # Pillow raises above twice its limit, and 16 pixels are 3.2 times
    monkeypatch.setattr(limit, 5)
    with pytest.raises(UldaError, match=r"a\.png is refused as a possible decompression bomb"):
        list(PicturesReader().slices(tmp_path / "a.png"))


def test_truncated_picture_and_wrong_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    noise = np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)
    Image.fromarray(noise).save(path)
    with pytest.raises(UldaError, match="real numbers"):
        list(PicturesReader().slices(path, "kspace"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UldaError, match="truncated or damaged"):
        list(find_reader(path).slices(path))
