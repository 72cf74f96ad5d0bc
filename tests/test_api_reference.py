from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ulda
from scripts import docstring_markdown as renderer
from scripts.docstring_markdown import docstring_markdown
from scripts.update_api import FOLDER, INDEX, pages
from ulda.physics import fft2c

PACKAGES = ["ulda", *(module.name for module in pkgutil.walk_packages(ulda.__path__, "ulda.") if module.ispkg)]
LISTED = {name: getattr(importlib.import_module(name), "__all__", ()) for name in PACKAGES}


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return pages()


def committed() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}


def headings(page: str) -> list[str]:
    return re.findall(r"^#{1,6} (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)


def test_the_committed_pages_are_those_of_the_docstrings(written: dict[str, str]) -> None:
    found = committed()
    stale = sorted(name for name in found.keys() | written.keys() if found.get(name) != written.get(name))
    assert not stale, f"{', '.join(stale)} in docs/api: run `make docs`"


def test_a_changed_docstring_changes_its_page(written: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft2c, "__doc__", "Do something else.")
    changed = {name for name, text in pages().items() if text != written[name]}
    assert changed == {INDEX, "physics.md"}


@pytest.mark.parametrize("package", [name for name, names in LISTED.items() if names])
def test_every_public_name_has_its_entry(package: str) -> None:
    entries = {heading for text in committed().values() for heading in headings(text)}
    page = package.split(".")[1] if "." in package else "ulda"
    own = set(headings((FOLDER / f"{page}.md").read_text()))
    first_home = {name for name in LISTED[package] if name not in LISTED["ulda"]} if page != "ulda" else LISTED["ulda"]
    assert not set(LISTED[package]) - entries
    assert not set(first_home) - own


def test_every_entry_says_what_it_is(written: dict[str, str]) -> None:
    """Behind each heading of a name stands its signature or value, and then a sentence."""
    for page, text in written.items():
        for entry in re.split(r"^## ", text, flags=re.MULTILINE)[1:] if page != INDEX else []:
            name, _, rest = entry.partition("\n")
            assert re.match(r"\n```py\n(class )?ulda\..*?```\n\n[A-Za-z`$(]", rest, re.DOTALL), f"{page}: {name}"


def test_links_and_headings_meet(written: dict[str, str]) -> None:
    anchors = {}
    for page, text in written.items():
        names = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(text)]
        assert len(names) == len(set(names)), f"{page} has two headings with one anchor"
        anchors[page] = set(names)
    links = [(page, link) for page, text in written.items() for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert len(links) > 100
    for page, link in links:
        target, _, anchor = link.partition("#")
        assert not anchor or anchor in anchors[target or page], f"{page} links to {link}"


def test_what_the_guide_imports_is_in_the_reference() -> None:
    """All that the examples of the guide take from the package is public, so it has an entry."""
    entries = {heading for text in committed().values() for heading in headings(text)}
    imported = set()
    for path in Path(FOLDER.parent).glob("*.md"):
        for names in re.findall(r"^from ulda[\w.]* import (.+)$", path.read_text(), re.MULTILINE):
            imported |= {name.strip() for name in names.split(",")}
    assert len(imported) > 10
    assert not imported - entries


DOCSTRING = """Add two numbers, as :math:`a + b`.

    It is done so::

        a + b

    Parameters
    ----------
    a, b
        Numbers,
        any of them.

    Returns
    -------
        The sum, an ``int``.

    Raises
    ------
    UldaError
        When one is missing.

    Examples
    --------
    >>> 1 + 1
    2

    Also with others:

    >>> 1 + 2
    3
    """

MARKDOWN = """Add two numbers, as $a + b$.

It is done so:

```text
a + b
```

**Parameters**

- `a`, `b`: Numbers, any of them.

**Returns**

The sum, an `int`.

**Raises**

- [`UldaError`](there): When one is missing.

**Examples**

```pycon
>>> 1 + 1
2
```

Also with others:

```pycon
>>> 1 + 2
3
```"""


def test_a_docstring_becomes_markdown() -> None:
    found = docstring_markdown(DOCSTRING, lambda name: "there" if name == "UldaError" else "")
    assert found == MARKDOWN


def test_the_examples_of_the_renderer_run() -> None:
    assert doctest.testmod(renderer).failed == 0
