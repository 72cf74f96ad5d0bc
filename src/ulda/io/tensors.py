"""Tensors as safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and texts; a write that fails is an OSError, as of any other file.

    The library's own writer raises an error of its own, which does not tell a full disk from a mistake.
    """
    from safetensors.torch import save

    path.write_bytes(save(dict(tensors), None if metadata is None else dict(metadata)))
