"""Numpy-style docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise

LISTED = ("Parameters", "Attributes", "Raises", "Yields")
"""Sections whose entries are a name, or several, with an indented text."""


def no_links(name: str) -> str:  # noqa: ARG001
    """Say of every name that it is documented nowhere."""
    return ""


def docstring_markdown(docstring: str, link: Callable[[str], str] = no_links) -> str:
    r"""Write a docstring as Markdown: its paragraphs, and its sections under bold headings.

    Parameters
    ----------
    docstring
        The text as it stands in the code.
    link
        Returns where a name in backticks is documented; empty for nowhere.

    Examples
    --------
    >>> print(docstring_markdown("Add ``a`` to `b`.\n\nParameters\n----------\na\n    A number."))
    Add `a` to `b`.
    <BLANKLINE>
    **Parameters**
    <BLANKLINE>
    - `a`: A number.
    """
    parts = []
    for title, lines in _sections(inspect.cleandoc(docstring).splitlines()):
        parts += [f"**{title}**"] if title else []
        if title in LISTED:
            parts.append("\n".join(_entries(lines, link)))
        elif title == "Examples":
            parts += _examples(lines, link)
        else:
            parts += _paragraphs(inspect.cleandoc("\n".join(["", *lines])).splitlines(), link)
    return "\n\n".join(part for part in parts if part)


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield title and lines of each section; what stands before the first has no title."""
    underlined = [i for i in range(1, len(lines)) if lines[i] and set(lines[i]) == {"-"} and lines[i - 1].strip()]
    borders = [*(i - 1 for i in underlined), len(lines)]
    yield "", lines[: borders[0]]
    for start, end in pairwise(borders):
        yield lines[start].strip(), lines[start + 2 : end]


def _entries(lines: list[str], link: Callable[[str], str]) -> Iterator[str]:
    names, text = "", ""
    for line in [*lines, "end"]:
        if line and not line.startswith(" "):
            if names:
                title = ", ".join(f"`{name.strip()}`" for name in names.split(","))
                yield f"- {_linked(title, link)}: {_inline(text, link)}" if text else f"- {_linked(title, link)}"
            names, text = line.partition(" : ")[0], ""
        else:
            text = f"{text} {line.strip()}".strip()


def _examples(lines: list[str], link: Callable[[str], str]) -> Iterator[str]:
    """Yield the sentences and the sessions of an example; a session ends at an empty line."""
    for block in "\n".join(lines).strip().split("\n\n"):
        if block.startswith(">>>"):
            yield f"```pycon\n{block}\n```"
        else:
            yield from _paragraphs(block.splitlines(), link)


def _paragraphs(lines: list[str], link: Callable[[str], str]) -> Iterator[str]:
    """Yield paragraphs and lists, formulas, and what else is indented (pseudo-code) as it stands."""
    for block in re.split(r"\n{2,}", "\n".join(lines).strip("\n")):
        rows = block.splitlines()
        if rows and rows[0] == ".. math::":
            formula = inspect.cleandoc("\n".join(["", *rows[1:]]))
            yield f"```math\n\\begin{{aligned}}\n{formula}\n\\end{{aligned}}\n```"
        elif rows and all(row.startswith("    ") for row in rows):
            yield "```text\n" + inspect.cleandoc("\n".join(["", *rows])) + "\n```"
        elif rows:
            yield _inline(re.sub(r"::$", ":", block), link)


def _inline(text: str, link: Callable[[str], str]) -> str:
    text = re.sub(r":math:`(.+?)`", r"$\1$", text, flags=re.DOTALL)
    return _linked(re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL), link)


def _linked(text: str, link: Callable[[str], str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        target = link(found.group(1))
        return f"[{found.group(0)}]({target})" if target else found.group(0)

    return re.sub(r"`([\w.]+)`", replaced, text)
