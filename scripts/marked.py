"""The part of a Markdown page between two marks, which a script writes.

A mark is a comment on a line of its own, such as ``<!-- speed -->``. The mark of the beginning stands once in the page;
the part ends at the first mark of the end behind it, so that several parts may end with the same ``<!-- end -->``.
"""

from __future__ import annotations

from pathlib import Path

from ulda.errors import UldaError


def between(text: str, begin: str, end: str) -> str:
    r"""Return what stands between two marks, without the line breaks behind the first and before the second.

    Parameters
    ----------
    text
        The page.
    begin, end
        The marks.

    Raises
    ------
    UldaError
        When a mark is missing, or the first one stands twice.

    Examples
    --------
    >>> between("Times\n<!-- speed -->\n2 s\n<!-- end -->\n", "<!-- speed -->", "<!-- end -->")
    '2 s'
    """
    return _split(text, begin, end)[1].removeprefix("\n").removesuffix("\n")


def replaced(text: str, begin: str, end: str, body: str) -> str:
    r"""Return the page with `body` on lines of its own between two marks.

    Parameters
    ----------
    text
        The page.
    begin, end
        The marks; they stay.
    body
        What is to stand between them; it holds neither of them.

    Raises
    ------
    UldaError
        When a mark is missing, or the first one stands twice.

    Examples
    --------
    >>> replaced("Times\n<!-- speed -->\n2 s\n<!-- end -->\n", "<!-- speed -->", "<!-- end -->", "1 s")
    'Times\n<!-- speed -->\n1 s\n<!-- end -->\n'
    """
    before, _, after = _split(text, begin, end)
    return f"{before}{begin}\n{body}\n{end}{after}"


def write_between(path: Path, begin: str, end: str, body: str) -> None:
    """Replace what stands between two marks of a file; see `replaced`.

    Raises
    ------
    UldaError
        When a mark is missing, or the first one stands twice; the file then stays as it was.
    """
    text = path.read_text(encoding="utf-8")
    try:
        text = replaced(text, begin, end, body)
    except UldaError as error:
        raise UldaError(f"{path.name}: {error}") from error
    path.write_text(text, encoding="utf-8")


def _split(text: str, begin: str, end: str) -> tuple[str, str, str]:
    """Return what stands before, between and behind the marks."""
    if (n_found := text.count(begin)) != 1:
        raise UldaError(f"the mark {begin} stands {n_found} times in the page; it must stand there once")
    before, rest = text.split(begin)
    body, found, after = rest.partition(end)
    if not found:
        raise UldaError(f"the mark {end} is missing behind {begin}; put it where the written part ends")
    return before, body, after
