"""Gzip of others: what comes out of it is bounded."""

from __future__ import annotations

import zlib

from ulda.io.untrusted import HARMLESS_BYTES, MOST_EXPANSION

GZIP_MAGIC = b"\x1f\x8b"

_WINDOW = 31
"""zlib's code for: the largest window, with a gzip header."""


def gunzip_head(head: bytes, n_bytes: int) -> bytes:
    """Return the first bytes that the beginning of a gzip file stands for; empty where it is damaged."""
    try:
        return zlib.decompressobj(_WINDOW).decompress(head, n_bytes)
    except zlib.error:
        return b""


def gunzip(content: bytes) -> bytes:
    """Unpack gzip of one member; a ValueError where it is damaged or becomes absurdly large.

    Examples
    --------
    >>> import gzip
    >>> gunzip(gzip.compress(b"abc"))
    b'abc'
    """
    most = max(HARMLESS_BYTES, MOST_EXPANSION * len(content))
    unpacker = zlib.decompressobj(_WINDOW)
    try:
        unpacked = unpacker.decompress(content, most)
    except zlib.error as error:
        raise ValueError(f"its gzip is damaged: {error}") from error
    if not unpacker.eof:
        raise ValueError(f"its gzip is truncated, or becomes more than {MOST_EXPANSION} times larger")
    return unpacked
