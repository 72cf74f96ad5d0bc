"""The error every part of `ulda` raises for a mistake a person can correct."""

from __future__ import annotations


class UldaError(Exception):
    """One sentence for a person: what was wrong, where, what was expected, what to do.

    The command line prints the message alone, without a traceback.
    """


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
