"""SHA-256 of named tensors and of JSON documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of named tensors: names, types, shapes and bytes.

    Examples
    --------
    >>> import torch
    >>> fingerprint([("x", torch.zeros(2))])[:8]
    '551d55aa'
    """
    sha = hashlib.sha256()
    for name, tensor in tensors:
        array = np.ascontiguousarray(tensor.detach().cpu().resolve_conj().numpy())
        sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def digest(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON document in canonical form."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
