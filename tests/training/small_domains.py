"""Small source domains as files: crops of the embedded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ulda.data import demo


def write_domain(path: Path, name: str = "knee", n_subjects: int = 0, size: int = 32, every: int = 1) -> Path:
    """Write crops of an embedded domain as ``.npz``; with `n_subjects`, without splits and with as many subjects."""
    domain = demo(name)
    domain = domain.take(range(0, len(domain), every))
    corner = (domain.shape[-1] - size) // 2
    images = np.stack([image.abs().numpy() for image in domain.images()])
    labels = {"subject": domain.subjects, "split": domain.label("split")}
    if n_subjects:
        labels = {"subject": tuple(f"s{i * n_subjects // len(domain)}" for i in range(len(domain)))}
    crop = slice(corner, corner + size)
    arrays: dict[str, Any] = {"images": images[:, crop, crop]} | {k: np.array(v) for k, v in labels.items()}
    np.savez(path, **arrays)
    return path
