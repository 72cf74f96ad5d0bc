"""U-LDA in a size that reconstructs in milliseconds."""

from __future__ import annotations

import torch

from ulda.methods.ulda import ULDA


def small_model(*sources: str, domain: str | None = None, phases: int = 3) -> ULDA:
    """Return an untrained model; the adapter of its domain, if that is no source, is the mean of the sources."""
    model = ULDA(sources=sources, width=3, depth=2, phases=phases)
    if domain is not None:
        model.add_domain(domain)
        model.domain = domain
    return model


def scale_sources(model: ULDA, weight: float) -> None:
    """Multiply the adapters of the sources, so that another adapter differs from their mean."""
    with torch.no_grad():
        for source in model.sources:
            for parameter in model.adapter(source).parameters():
                parameter.mul_(weight)
