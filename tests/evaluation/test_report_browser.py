"""The report in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.evaluation.report_examples import HEIGHT, HOSTILE, METHODS, PSNR, WIDTH, example, grey, hostile
from tests.experiments.report_examples import (
    HOSTILE_NAME,
    INDICES,
    MASK,
    SIDE,
    experiment_folder,
    hostile_folder,
    levels,
    packed_file,
)
from ulda.evaluation.report import Report, write_report
from ulda.evaluation.report.colours import error_colours
from ulda.experiments.reporting import read_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(os.environ.get("AXE_CORE", Path(__file__).parents[2] / ".cache/axe-core/axe.min.js"))
LONG = "a-rather-long-name-of-a-subject-from-an-export-without-any-blank-0123456789"

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium; install it with: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page, and what it logged, asked for and broke."""

    def __init__(self, browser: Any, path: Path, width: int = 1100, scheme: str = "light", **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self._check(request.url, path))
        self.page.goto(path.as_uri())
        if self.page.locator("#viewer").is_visible():
            self.at("")

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append("a dialog")
        dialog.dismiss()

    def _check(self, url: str, path: Path) -> None:
        if url != path.as_uri() and not url.startswith("data:image/"):
            self.problems.append(f"a request for {url}")

    def pixels(self, selector: str) -> NDArray[np.uint8]:
        """Return what a canvas shows ``(h, w, 3)``."""
        url = self.page.locator(selector).evaluate("canvas => canvas.toDataURL('image/png')")
        with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as picture:
            return np.asarray(picture.convert("RGB"))

    def at(self, place: str) -> None:
        """Wait until a slice is shown whose line begins like this.

        Not with ``wait_for_function``: it looks again by evaluating a string, which the page forbids.
        """
        sync_api.expect(self.page.locator("#status")).to_have_text(re.compile(f"^{re.escape(place)}."))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def names(self) -> list[str]:
        """Return the names of the slices in the order of the table."""
        return list(self.page.locator("#table tbody button").all_text_contents())


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open reports; at the end nothing may have been logged, asked for or broken."""
    opened: list[Opened] = []

    def show(*reports: Report, **options: Any) -> Opened:
        path = tmp_path / "report.html"
        write_report(reports or [example()], path, overwrite=True)
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield show
    for one in opened:
        one.context.close()
        assert one.problems == []


def expected(
    image: NDArray[Any], shape: tuple[int, ...], zoom: float = 1.0, x: float = 0.5, y: float = 0.5
) -> NDArray[Any]:
    """Enlarge the part of an image around a centre to a canvas, pixel by pixel."""
    height, width = shape[:2]
    rows = ((np.arange(height) + 0.5) / height - 0.5) / zoom + y
    columns = ((np.arange(width) + 0.5) / width - 0.5) / zoom + x
    return image[np.floor(rows * HEIGHT).astype(int)][:, np.floor(columns * WIDTH).astype(int)]


def agreement(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Return the fraction of pixels that agree; those on an edge between two image pixels may not."""
    wanted = wanted if wanted.ndim == 3 else wanted[..., None]
    return float((found == wanted).all(-1).mean())


def test_the_slider_moves_the_pixels(shown: Any) -> None:
    one = shown()
    reference, adapted = grey(0)[0], grey(3)[0]

    def shows(split: float) -> None:
        found = one.pixels("#slider")
        edge = round(split * found.shape[1])
        left, right = expected(reference, found.shape), expected(adapted, found.shape)
        assert agreement(found[:, : edge - 2], left[:, : edge - 2]) > 0.97
        assert agreement(found[:, edge + 2 :], right[:, edge + 2 :]) > 0.97

    shows(0.5)
    one.page.locator("#split").fill("20")
    shows(0.2)
    box = one.page.locator("#slider").bounding_box()
    one.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60, steps=3)
    one.page.mouse.up()
    assert one.page.locator("#split").input_value() == "75"
    shows(0.75)
    one.page.locator("#left").select_option(label="TV")
    one.page.locator("#swap").click()
    reference, adapted = grey(3)[0], grey(2)[0]
    shows(0.75)
    one.page.locator("button[aria-label='Left: show zero-filling']").click()
    reference = grey(1)[0]
    shows(0.75)
    assert "zero-filling left of the divider, TV right of it" in one.page.locator("#slider").get_attribute("aria-label")


def test_clicks_do_not_move_the_divider(shown: Any) -> None:
    one = shown()
    one.page.locator("#slider").scroll_into_view_if_needed()
    box = one.page.locator("#slider").bounding_box()
    one.page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 50)
    one.page.mouse.dblclick(box["x"] + 0.8 * box["width"], box["y"] + 50)
    assert one.page.locator("#zoom").text_content() == "2×"
    assert one.page.locator("#split").input_value() == "50"
    # the divider of a zoomed image is dragged as before, and beside it the image
    one.page.mouse.move(box["x"] + 0.49 * box["width"], box["y"] + 50)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60, steps=5)
    one.page.mouse.up()
    assert one.page.locator("#split").input_value() == "30"
    one.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60, steps=5)
    one.page.mouse.up()
    assert one.page.locator("#split").input_value() == "30"


def test_fingers_on_the_slider(shown: Any) -> None:
    one = shown(width=360, has_touch=True, is_mobile=True)
    fingers = one.context.new_cdp_session(one.page)
    one.page.locator("#slider").evaluate("e => e.scrollIntoView({ block: 'center' })")
    box = one.page.locator("#slider").bounding_box()

    def touch(*tracks: tuple[tuple[float, float], tuple[float, float]]) -> None:
        """Put a finger on the start of each track, one after another, and move all of them to the ends."""

        def points(part: float, n: int = len(tracks)) -> list[dict[str, float]]:
            return [
                {
                    "x": box["x"] + box["width"] * (x + part * (to_x - x)),
                    "y": box["y"] + box["height"] * (y + part * (to_y - y)),
                    "id": i,
                }
                for i, ((x, y), (to_x, to_y)) in enumerate(tracks[:n])
            ]

        for n in range(len(tracks)):
            fingers.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points(0, n + 1)})
        for step in range(1, 11):
            fingers.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": points(step / 10)})
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def split() -> str:
        return str(one.page.locator("#split").input_value())

    # across, and a little down
    touch(((0.3, 0.5), (0.7, 0.6)))
    assert split() == "70"
    # a tap, a swipe that scrolls the page, also along the divider
    before = one.page.evaluate("window.scrollY")
    touch(((0.2, 0.5), (0.2, 0.5)))
    touch(((0.3, 0.8), (0.35, 0.4)))
    touch(((0.68, 0.6), (0.7, 0.3)))
    one.page.wait_for_timeout(300)
    assert one.page.evaluate("window.scrollY") > before
    assert split() == "70"
    one.page.locator("#slider").evaluate("e => e.scrollIntoView({ block: 'center' })")
    assert one.page.locator("#zoom").text_content() == "1×"
    touch(((0.4, 0.5), (0.2, 0.5)), ((0.6, 0.5), (0.8, 0.5)))
    assert one.page.locator("#zoom").text_content() == "3×"
    assert split() == "70"


def test_zoom_and_place_are_the_same_in_all_views(shown: Any) -> None:
    one = shown()
    panes = [f"#panes figure:nth-child({i + 1}) canvas" for i in range(4)]

    def shows(zoom: float, x: float, y: float) -> None:
        for seed, selector in enumerate(panes):
            found = one.pixels(selector)
            assert agreement(found, expected(grey(seed)[0], found.shape, zoom, x, y)) > 0.95, selector
        found = one.pixels("#slider")
        half = found.shape[1] // 2
        for seed, part in ((0, slice(0, half - 2)), (3, slice(half + 2, None))):
            assert agreement(found[:, part], expected(grey(seed)[0], found.shape, zoom, x, y)[:, part]) > 0.95

    shows(1, 0.5, 0.5)
    one.page.locator("#zoom-in").click()
    one.page.locator("#zoom-in").click()
    shows(2.25, 0.5, 0.5)
    assert one.page.locator("#zoom").text_content() in ("2.3×", "2.2×")
    one.press("l", "k")
    shows(2.25, 0.5 + 0.1 / 2.25, 0.5 - 0.1 / 2.25)
    # dragging one image by a quarter of its width moves all of them
    one.page.locator(panes[2]).scroll_into_view_if_needed()
    box = one.page.locator(panes[2]).bounding_box()
    one.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    one.page.mouse.up()
    shows(2.25, 0.5 - 0.15 / 2.25, 0.5 - 0.1 / 2.25)
    # and no view leaves the image
    one.press(*["h"] * 20)
    shows(2.25, 0.5 / 2.25, 0.5 - 0.1 / 2.25)
    one.press("0")
    shows(1, 0.5, 0.5)


def test_error_maps_have_one_stated_scale(shown: Any) -> None:
    one = shown()
    assert one.page.locator("#error-scale").is_hidden()
    one.page.locator("#errors").check()
    # random images differ by up to their peak
    assert one.page.locator("#scale-end").text_content() == "≥ 1"
    error = np.abs(grey(2)[0].astype(int) - grey(0)[0])
    found = one.pixels("#panes figure:nth-child(3) canvas")
    assert agreement(found, expected(error_colours()[error], found.shape)) > 0.97
    one.page.locator("#error-scale").select_option(label="0 to 0.25")
    assert one.page.locator("#scale-end").text_content() == "≥ 0.25"
    found = one.pixels("#panes figure:nth-child(3) canvas")
    assert agreement(found, expected(error_colours()[np.minimum(255, 4 * error)], found.shape)) > 0.97
    one.press("e")
    found = one.pixels("#panes figure:nth-child(3) canvas")
    assert agreement(found, expected(grey(2)[0], found.shape)) > 0.97
    assert one.page.locator("#scale").is_hidden()
    assert one.page.locator("#error-scale").is_hidden()


def test_sorting(shown: Any) -> None:
    one = shown()

    def heading(name: str) -> Any:
        return one.page.locator("#table thead th", has_text=name)

    assert one.names() == [f"slice {i}" for i in range(5)]
    heading("TV").locator("button").click()
    assert heading("TV").get_attribute("aria-sort") == "descending"
    # 100.25, 30, 28, 9.5 as numbers, and what is no number last
    assert one.names() == ["slice 2", "slice 0", "slice 4", "slice 1", "slice 3"]
    heading("TV").locator("button").click()
    assert heading("TV").get_attribute("aria-sort") == "ascending"
    assert one.names() == ["slice 1", "slice 4", "slice 0", "slice 2", "slice 3"]
    heading("adapted").locator("button").click()
    assert one.names()[:2] == ["slice 2", "slice 1"]
    assert heading("TV").get_attribute("aria-sort") == "none"
    heading("Subject").locator("button").click()
    assert one.names() == ["slice 3", "slice 4", "slice 2", "slice 0", "slice 1"]
    one.page.locator("#metric").select_option(label="NMSE")
    heading("TV").locator("button").click()
    assert one.names() == [f"slice {i}" for i in (4, 3, 2, 1, 0)]
    runs = one.page.locator("#table tbody tr:first-child td").all_text_contents()
    assert runs == ["a2", "★ best: 0.03333", "0.10000", "0.05000"]


def test_the_table_selects_slices(shown: Any) -> None:
    one = shown()
    one.page.locator("#table tbody tr:nth-child(3) td:last-child").click()
    one.at("Slice 3 of 5 – a10: slice ")
    found = one.pixels("#panes figure:nth-child(1) canvas")
    assert agreement(found, expected(grey(0)[2], found.shape)) > 0.97
    one.page.locator("#table tbody tr:nth-child(5) button").focus()
    one.press("Enter")
    one.at("Slice 5 of 5")
    assert one.page.locator("#table tr[aria-current=true]").get_attribute("data-slice") == "4"
    caption = one.page.locator("#panes figure:nth-child(4) figcaption").text_content()
    assert "PSNR 29.00 dB" in caption
    assert f"SSIM {0.92:.4f}" in caption


@pytest.mark.parametrize("width", [1100, 360])
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_slice_that_is_chosen_in_the_table_is_seen(motion: str, width: int, shown: Any) -> None:
    one = shown(width=width, reduced_motion=motion)
    frame = one.page.locator("#slider-frame")
    for row, choose in ((3, "click"), (5, "press")):
        button = one.page.locator(f"#table tbody tr:nth-child({row}) button")
        one.page.locator("#table-region").evaluate("e => e.scrollIntoView({ block: 'start', behavior: 'instant' })")
        sync_api.expect(frame).not_to_be_in_viewport()
        button.click() if choose == "click" else button.press("Enter")
        if motion == "reduce":
            assert one.page.locator("#viewer").evaluate("e => Math.abs(e.getBoundingClientRect().top)") < 1
        sync_api.expect(frame).to_be_in_viewport(ratio=1)
        one.at(f"Slice {row} of 5")
        # the keyboard goes on from the images
        assert one.page.evaluate("document.activeElement.id") == "viewer"
        one.press("Tab")
        assert one.page.evaluate("document.activeElement.id") == "previous"


def test_what_is_seen_stays_where_it_is(shown: Any) -> None:
    one = shown()
    one.page.set_viewport_size({"width": 1100, "height": 2500})
    button = one.page.locator("#table tbody tr:nth-child(3) button")
    button.press("Enter")
    one.at("Slice 3 of 5")
    assert one.page.evaluate("window.scrollY") == 0
    assert button.evaluate("e => e === document.activeElement")


def test_negative_scores_have_a_minus_sign(shown: Any) -> None:
    one = shown(replace(example(), scores={name: {"psnr": -np.arange(5.0) - 1} for name in METHODS[1:]}))
    runs = one.page.locator("#table tbody tr:nth-child(2) td").all_text_contents()
    assert runs[1:3] == ["★ best: −2.00", "★ best: −2.00"]
    assert "PSNR −1.00 dB" in one.page.locator("#panes figure:nth-child(3) figcaption").text_content()


def test_the_keyboard(shown: Any) -> None:
    one = shown()

    def at(number: int) -> None:
        one.at(f"Slice {number} of 5")

    one.press("ArrowRight", "ArrowRight")
    at(3)
    one.press("ArrowLeft")
    at(2)
    # the arrows follow the order of the table
    one.page.locator("#table thead th", has_text="TV").locator("button").click()
    one.press("ArrowLeft")
    at(5)
    one.press("]", "]")
    assert one.page.locator("#split").input_value() == "60"
    one.press("s")
    assert one.page.locator("#left").evaluate("e => e.selectedOptions[0].textContent") == "adapted"
    # a slider keeps its own keys
    one.page.locator("#split").focus()
    one.press("ArrowLeft")
    assert one.page.locator("#split").input_value() == "59"
    at(5)
    one.page.locator("#shortcuts").uncheck()
    one.press("ArrowRight", "e")
    at(5)
    assert not one.page.locator("#errors").is_checked()


def test_certificates(shown: Any) -> None:
    one = shown()
    assert one.page.locator("#plots svg").count() == 2
    assert one.page.locator("#plots svg:first-child .mark-refused").count() == 2
    assert one.page.locator("#plots svg:last-child .mark-stalled").count() == 1
    text = one.page.locator("#descent").text_content()
    assert "every one of 6 iterations descended; 3 took the learned proposal, 2 refused it" in text
    # the gradient falls from 1 to 1/7, so that its height is logarithmic; the objective from 13.84 to 4.84
    for plot, labels in (("first", ["iteration"]), ("last", ["iteration", "logarithmic scale"])):
        texts = one.page.locator(f"#plots svg:{plot}-child text").all_text_contents()
        assert [text for text in texts if text in ("iteration", "logarithmic scale")] == labels
    boxes = [one.page.locator("#plots text", has_text=text).last.bounding_box() for text in ("log", "0.5")]
    assert boxes[0]["height"] > boxes[0]["width"]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    rows = one.page.locator("#iterations tbody tr")
    assert rows.count() == 6
    assert rows.nth(2).locator("td").all_text_contents() == [
        "0.0100000", "3.33333", "2.00000", "0.250000", "line search", "2", "yes",
    ]  # fmt: skip
    one.press(*["ArrowRight"] * 4)
    assert "NOT every one of 6" in one.page.locator("#descent").text_content()


def test_the_mask_and_kspace(shown: Any) -> None:
    one = shown()
    report = example()
    mask = report.slices[0].mask
    assert mask is not None
    assert f"{mask.n_sampled} of {HEIGHT} lines" in one.page.locator("#sampling-text").text_content()
    lines = np.repeat(np.array(mask.sampled)[:, None], WIDTH, 1)
    found = one.pixels("#mask")
    assert agreement(found, 255 * expected(lines, found.shape)) > 0.97
    # white lines end at a border, not in the white of the page
    box = one.page.locator("#mask").evaluate(
        "e => { e.scrollIntoView(); const { x, y, height } = e.getBoundingClientRect(); return { x, y, height }; }"
    )
    clip = {"x": box["x"] - 8, "y": box["y"] + 8, "width": 8, "height": box["height"] - 16}
    with Image.open(io.BytesIO(one.page.screenshot(clip=clip))) as picture:
        margin = np.asarray(picture.convert("L"))
    assert (margin[:, :6] == 255).all()
    assert (margin.min(1) < 150).all()
    found = one.pixels("#kspace").astype(int)
    is_grey = (found[..., 0] == found[..., 1]) & (found[..., 0] == found[..., 2])
    assert (is_grey == expected(lines, found.shape)).mean() > 0.97


def test_headings_stand_on_one_line_and_keep_their_letters(shown: Any) -> None:
    one = shown()
    tops = one.page.evaluate("""[...document.querySelectorAll('#table thead button')].map((button) => {
        const range = document.createRange();
        range.selectNodeContents(button.firstChild);
        return range.getBoundingClientRect().top;
    })""")
    assert len(tops) == 5
    assert max(tops) - min(tops) < 0.5
    assert one.page.locator("h3").last.text_content() == "this page"
    assert one.page.locator("h3").last.evaluate("e => getComputedStyle(e).textTransform") == "none"
    letter = "e => getComputedStyle(e, '::first-letter').textTransform"
    assert one.page.locator("h3").last.evaluate(letter) == "uppercase"


def test_the_results_of_an_experiment(shown: Any, tmp_path: Path) -> None:
    one = shown(read_report(experiment_folder(tmp_path / "run")))
    status = one.page.locator("#status")
    assert status.text_content() == "Example 1 of 3 – a: slice 1"
    # all slices are in the table, the examples alone can be chosen
    assert one.page.locator("#table tbody tr").count() == 6
    assert one.names() == [f"slice {i}" for i in INDICES]
    assert "the 3 slices with images are underlined" in one.page.locator("#table-help").text_content()
    one.page.locator("#table tbody tr:nth-child(1) td").first.click()
    assert status.text_content() == "Example 1 of 3 – a: slice 1"
    one.press("ArrowRight")
    one.at("Example 2 of 3 – b: slice ")
    panes = one.page.locator("#panes .pane-name").all_text_contents()
    assert panes == ["reference", "TV", "Meta", "U-LDA"]
    columns = one.page.locator("#table thead button").all_text_contents()
    assert [name.split(" ")[0] for name in columns] == ["Slice", "Subject", "U-LDA", "TV", "DnCn", "Meta"]
    found = one.pixels("#panes figure:nth-child(4) canvas")
    wanted = np.round(255 * levels(1)[1]).astype(np.uint8)
    centres = ((np.arange(SIDE) + 0.5) * found.shape[0] / SIDE).astype(int)
    assert np.array_equal(found[centres][:, centres, 0], wanted)
    assert f"{MASK.n_sampled} of {SIDE} lines" in one.page.locator("#sampling-text").text_content()
    assert "Fourier transform of the reference's magnitude" in one.page.locator("#kspace-caption").text_content()
    # sorted by DnCn, which has no images: the arrows follow the order of the examples in it
    one.page.locator("#table thead th", has_text="DnCn").locator("button").click()
    assert len(one.names()) == 3


def test_the_traces_of_several_methods(shown: Any, tmp_path: Path) -> None:
    one = shown(read_report(experiment_folder(tmp_path / "run")))
    assert one.page.locator("#traced option").all_text_contents() == ["Meta", "U-LDA"]
    text = one.page.locator("#descent").text_content()
    assert text.startswith("U-LDA, a: slice 1: every one of 3 iterations descended; 2 took the learned proposal, ")
    assert "1 refused it for a line-search step. Iteration 2, the dashed line" in text
    assert one.page.locator("#plots .image-at").count() == 2
    one.page.locator("details summary").click()
    assert one.page.locator("#iterations thead th").count() == 7
    assert one.page.locator("#iterations tbody tr:nth-child(3) td").all_text_contents() == [
        "0.0100000", "–", "5.00000", "0.500000", "proposal", "yes",
    ]  # fmt: skip
    one.page.locator("#traced").select_option(label="Meta")
    assert one.page.locator("#descent").text_content().startswith("Meta, a: slice 1")
    one.press("ArrowRight", "ArrowRight")
    one.at("Example 3 of 3")
    assert "NOT every one of 3" in one.page.locator("#descent").text_content()


def test_a_packed_file_of_an_experiment(shown: Any, tmp_path: Path) -> None:
    folder = experiment_folder(tmp_path / "run")
    one = shown(read_report(packed_file(folder, tmp_path / "packed.json")), read_report(folder))
    for section in ("#viewer", "#certificate", "#kspace"):
        assert one.page.locator(section).is_hidden()
    # the mask is known, and drawn as wide as it is high
    assert f"{MASK.n_sampled} of {SIDE} lines" in one.page.locator("#sampling-text").text_content()
    found = one.pixels("#mask")
    rows = ((np.arange(SIDE) + 0.5) * found.shape[0] / SIDE).astype(int)
    assert found.shape[0] == found.shape[1] > 200
    assert np.array_equal(found[rows, found.shape[1] // 2, 0], 255 * np.array(MASK.sampled))
    skip = one.page.locator(".skip")
    assert skip.text_content() == "Skip to the slices"
    one.press("Tab", "Enter")
    assert one.page.evaluate("document.activeElement.id") == "slices"
    assert "a packed file holds scores and no images" in one.page.locator(".note").first.text_content()
    assert one.page.locator("#table tbody tr").count() == 6
    assert one.page.locator("#table tbody button").count() == 0
    assert one.page.locator("#table-help").text_content() == "A heading sorts."
    one.page.locator("#table thead th", has_text="TV").locator("button").click()
    values = [
        float(text) for text in one.page.locator("#table tbody td:nth-child(4)").all_inner_texts() if "★" not in text
    ]
    assert values == sorted(values, reverse=True)
    one.page.locator("#source").select_option(index=1)
    one.at("Example 1 of 3")
    assert one.page.locator("#viewer").is_visible()
    assert one.page.locator("#kspace").is_visible()
    assert skip.text_content() == "Skip to the images"
    skip.focus()
    one.press("Enter")
    assert one.page.evaluate("document.activeElement.id") == "viewer"


def test_hostile_names_in_an_experiment_are_text(shown: Any, tmp_path: Path) -> None:
    one = shown(read_report(hostile_folder(tmp_path / "run", HOSTILE)))
    assert one.page.locator("h1").text_content() == f"{HOSTILE}: {HOSTILE_NAME}, adapted with 5 slices"
    assert one.page.locator("#panes .pane-name").all_text_contents() == ["reference", HOSTILE_NAME, "other"]
    assert one.page.locator("#table tbody tr:first-child td").first.text_content() == HOSTILE
    one.press("ArrowRight", "e", "s")
    assert one.page.evaluate("window.hacked") is None
    assert one.page.locator("img").count() == 0


def test_several_results_and_results_without_images_or_reference(shown: Any) -> None:
    first = example("first")
    numbers = replace(example("numbers"), images={}, reference=None, traces={})
    alone = replace(example("alone"), reference=None, scores={}, judged="")
    one = shown(first, numbers, alone)
    assert one.page.locator("#viewer").is_visible()
    one.page.locator("#source").select_option(label="numbers")
    assert one.page.locator("#viewer").is_hidden()
    assert one.page.locator("#certificate").is_hidden()
    assert one.page.locator("#table tbody tr").count() == 5
    assert one.page.locator(".source:visible h2").all_text_contents() == ["numbers: Summary", "numbers: Provenance"]
    one.page.locator("#source").select_option(label="alone")
    assert one.page.locator("#viewer").is_visible()
    assert one.page.locator("#error-tools").is_hidden()
    sync_api.expect(one.page.locator("#panes canvas")).to_have_count(3)
    found = one.pixels("#panes figure:nth-child(2) canvas")
    assert agreement(found, expected(grey(2)[0], found.shape)) > 0.97


def test_masks_that_differ_need_a_slice(shown: Any) -> None:
    report = replace(example(), images={}, reference=None, traces={})
    one = shown(replace(report, slices=(replace(report.slices[0], mask=None), *report.slices[1:])), report)
    assert one.page.locator("#sampling").is_hidden()
    one.page.locator("#source").select_option(index=1)
    assert one.page.locator("#mask").is_visible()


def test_hostile_names_are_text(shown: Any) -> None:
    one = shown(hostile(), example())
    assert one.page.locator("h1").text_content() == f"{HOSTILE} and knee: 2 results"
    assert one.page.locator(".verdict").first.text_content() == HOSTILE
    assert one.page.locator("#panes .pane-name").nth(1).text_content() == f"{HOSTILE} 0"
    assert one.names()[3] == f"{HOSTILE} slice 3"
    assert one.page.locator("#table tbody tr:nth-child(2) td").first.text_content() == f"{HOSTILE}1"
    one.press("ArrowRight", "e", "s")
    assert one.page.evaluate("window.hacked") is None
    assert one.page.locator("img").count() == 0
    assert one.page.locator("script").count() == 2


def test_nothing_but_the_own_script_may_run(browser: Any, tmp_path: Path) -> None:
    write_report([example()], tmp_path / "report.html")
    one = Opened(browser, tmp_path / "report.html")
    one.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        const image = "<img src='http://127.0.0.1:9/x.png' onerror='window.hacked = 2'>";
        document.body.insertAdjacentHTML("beforeend", image);
    }""")
    one.page.wait_for_timeout(200)
    assert one.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in problem for problem in one.problems)
    one.context.close()


def test_a_phone_does_not_scroll_sideways(shown: Any) -> None:
    methods = tuple(f"{name} {LONG}" for name in METHODS)
    assert list(PSNR) == list(METHODS)
    one = shown(example(LONG, methods, (LONG,) * 5), example(), width=360)
    one.page.locator("#errors").check()
    assert one.page.evaluate("document.documentElement.scrollWidth") == 360
    for selector in ("#slider", "#split", "#theme", "#source", "#slice", "#right", "#kspace"):
        box = one.page.locator(selector).bounding_box()
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= 360, selector


def wide() -> Report:
    """Return scores of ten methods, the last one judged, with long names."""
    names = [f"a method with the number {i}" for i in range(10)]
    scores = {name: {"psnr": np.arange(5.0) + i} for i, name in enumerate(names)}
    return replace(example(), images={}, reference=None, traces={}, scores=scores, judged=names[-1])


@pytest.mark.parametrize("width", [1100, 360])
def test_a_table_that_is_cut_says_so(width: int, shown: Any) -> None:
    one = shown(wide(), width=width)
    region = one.page.locator("#table-region")
    shadow = "e => getComputedStyle(e, '::after').content !== 'none'"
    assert region.evaluate("e => e.scrollWidth > e.clientWidth")
    assert region.evaluate(shadow)
    # the shadow takes no place, and is at the edge wherever the table is
    assert region.evaluate("e => e.scrollWidth === e.firstElementChild.offsetWidth")
    region.evaluate("e => { e.scrollLeft = 50; }")
    region.scroll_into_view_if_needed()
    box = region.bounding_box()
    clip = {"x": box["x"] + box["width"] - 40, "y": box["y"] + 8, "width": 39, "height": 4}
    with Image.open(io.BytesIO(one.page.screenshot(clip=clip))) as picture:
        edge = np.asarray(picture.convert("L"))[0].astype(int)
    assert edge[-1] < edge[0] - 40
    region.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    sync_api.expect(region).not_to_have_class(re.compile("cut"))
    assert not region.evaluate(shadow)
    # a table that fits has none
    one = shown(width=1100)
    assert not one.page.locator("#table-region").evaluate(shadow)


def test_the_table_on_a_phone(shown: Any) -> None:
    one = shown(wide(), width=360, is_mobile=True, device_scale_factor=2)
    region = one.page.locator("#table-region")
    region.scroll_into_view_if_needed()
    box, heading = region.bounding_box(), one.page.locator("#table thead th:nth-child(3)")
    # the judged method is beside the slices, and the subjects give way
    assert heading.text_content() == "a method with the number 9"
    assert one.page.locator("#table .subject").first.is_hidden()
    assert heading.bounding_box()["x"] + 100 < box["x"] + box["width"]
    # the names of the slices and the lines around them stay as they are while the rest moves
    column = one.page.locator("#table thead th").first.bounding_box()
    clip = {"x": column["x"], "y": column["y"] + 4, "width": column["width"] + 1, "height": box["height"] - 8}
    pictures = []
    for left in (0, 45):
        region.evaluate("(e, left) => { e.scrollLeft = left; }", left)
        pictures.append(one.page.screenshot(clip=clip))
    assert pictures[0] == pictures[1]
    with Image.open(io.BytesIO(pictures[1])) as picture:
        blank = np.asarray(picture.convert("L"))[:, 3].astype(int)
    # a line above each row
    assert (np.diff(blank) < -20).sum() == 5


@pytest.mark.skipif(not AXE.is_file(), reason="there is no axe-core; fetch it with: make .cache/axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(scheme: str, shown: Any) -> None:
    one = shown(example(), example("second"), scheme=scheme)
    one.page.locator("#errors").check()
    one.page.locator("details summary").click()
    one.page.evaluate(AXE.read_text(encoding="utf-8"))
    for theme in (scheme, "toggled"):
        if theme == "toggled":
            one.page.locator("#theme").click()
        found = one.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            f"{violation['id']}: {violation['nodes'][0]['html']}"
            for violation in found["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []
