"""The error every part of `ulda` raises for a mistake a person can correct."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, such as those that begin commands for a terminal, marks that turn the direction of writing, and
halves of characters, which cannot be encoded."""


def escaped(text: str) -> str:
    r"""Show control characters of a text as escapes, so that text from a file does nothing to a terminal.

    Examples
    --------
    >>> print(escaped("knee\x1b[2J\n"))
    knee\x1b[2J\x0a
    """
    return _UNPRINTABLE.sub(lambda match: _escape(ord(match[0])), text)


def escaped_json(text: str) -> str:
    """Write what `escaped` shows as an escape, but for the line feeds between entries, as JSON has it."""
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


class UldaError(Exception):
    """One sentence for a person: what was wrong, where, what was expected, what to do.

    The command line prints the message alone, without a traceback. What files say in it is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


class MissingExtraError(UldaError):
    """An optional library is needed and is not installed.

    Parameters
    ----------
    what
        What needs the library, e.g. ``"reading DICOM"``.
    extra
        The extra of this package that brings it, e.g. ``"dicom"``.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional library; install it with: pip install "ulda[{extra}]"')


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
