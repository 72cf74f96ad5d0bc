"""The universal prior: one feature extractor g, and per domain an adapter h with an optional low-rank update of g."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models.adapter import Adapter, DerivedAdapter, LowRankUpdate
from ulda.models.extractor import FeatureExtractor
from ulda.models.regularizer import Regularizer

MEAN = ".mean"
"""No domain, but the mean of the source adapters: what a new domain starts from."""

RESERVED = ("adapters", "proposals", "task_weights")
"""Parts of parameter names that decide on their learning rate; see `ulda.training.schedule.rate_multiplier`."""

LONGEST_NAME = 200

MAX_RANK = 64
"""No adapter has a larger rank; a file must not ask for any amount of memory."""


class UniversalPrior(nn.Module):
    """The regularisers ``||h_i(g(x))||_{2,1}`` of all domains, which share g.

    Parameters
    ----------
    width, depth, kernel_size, delta
        Of g; see `FeatureExtractor`.
    adapter_weight
        The weight of the regulariser at the start; see `Adapter`.
    noise_aware
        Of the adapters; see `Adapter`.
    seed
        Seed of the noise on the start.

    Attributes
    ----------
    extractor
        g.
    adapters, updates
        h, and the low-rank update of g, by domain.

    Examples
    --------
    >>> prior = UniversalPrior()
    >>> prior.add_domain("brain")
    >>> prior.add_domain("knee", rank=4, mean_of=["brain"])
    >>> [sum(p.numel() for p in part.parameters()) for part in (prior.extractor, prior.adapters["knee"])]
    [14112, 4608]
    >>> sum(p.numel() for p in prior.updates["knee"].parameters())
    4040
    """

    def __init__(
        self,
        width: int = 16,
        depth: int = 4,
        kernel_size: int = 3,
        delta: float = 0.1,
        adapter_weight: float = 0.003,
        *,
        noise_aware: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.adapter_weight, self.noise_aware = adapter_weight, noise_aware
        self.extractor = FeatureExtractor(width, depth, kernel_size, delta, seed=seed)
        self.adapters = nn.ModuleDict()
        self.updates = nn.ModuleDict()

    def add_domain(self, name: str, *, rank: int = 0, mean_of: Sequence[str] = (), seed: int = 0) -> None:
        """Add a domain: its adapter is the mean of those of other domains, or the untrained start.

        With a rank, it gets a low-rank update of g, too, which changes nothing until it learns.
        """
        check_domain_name(name)
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank <= MAX_RANK:
            raise UldaError(f"the rank of an adapter is a whole number from 0 to {MAX_RANK}, but it is {rank!r}")
        g = self.extractor
        adapter = Adapter(g.width, g.kernel_size, weight=self.adapter_weight, noise_aware=self.noise_aware, seed=seed)
        if mean_of:
            average_into(adapter, [self.adapters[other] for other in mean_of])
        place = next(g.parameters())
        self.adapters[name] = adapter.to(place)
        if name in self.updates:
            del self.updates[name]
        if rank:
            self.updates[name] = LowRankUpdate(g.width, g.depth, rank, g.kernel_size).to(place)

    def adapter(self, domain: str) -> Adapter:
        """Return the adapter of a domain."""
        if domain not in self.adapters:
            known = ", ".join(self.adapters) or "none"
            raise UldaError(f"the model has no adapter for the domain {domain!r}; it has: {known}")
        adapter = self.adapters[domain]
        assert isinstance(adapter, Adapter)
        return adapter

    def rank(self, domain: str) -> int:
        """Return the rank of a domain's update of g; 0 without one."""
        if domain not in self.updates:
            return 0
        update = self.updates[domain]
        assert isinstance(update, LowRankUpdate)
        return update.rank

    def extractor_of(self, domain: str) -> FeatureExtractor:
        """Return g as a domain uses it, with its low-rank update where it has one."""
        if domain not in self.updates:
            return self.extractor
        update = self.updates[domain]
        assert isinstance(update, LowRankUpdate)
        return update.applied_to(self.extractor)

    def regularizer(self, domain: str, *, recompute: bool = False) -> Regularizer:
        """Return the regulariser of a domain; it shares the parameters of the prior."""
        return Regularizer(self.extractor_of(domain), self.adapter(domain), recompute=recompute)


def mean_adapter(adapters: Sequence[Adapter]) -> DerivedAdapter:
    """Return the mean of adapters, which learns as they do."""

    def log_noise() -> Tensor | None:
        found = [one for one in (adapter.noise_scale() for adapter in adapters) if one is not None]
        return torch.stack(found).mean(0) if found else None

    return DerivedAdapter(adapters[0], lambda: torch.stack([one.layer.kernel() for one in adapters]).mean(0), log_noise)


@torch.no_grad()
def average_into(target: nn.Module, sources: Sequence[nn.Module]) -> None:
    """Set the parameters of a module to the mean of those of others of the same shape."""
    for name, parameter in target.named_parameters():
        parameter.copy_(torch.stack([source.get_parameter(name) for source in sources]).mean(0))


def is_same_name(name: str, other: str) -> bool:
    """Tell whether two names read the same: capitals, forms of a letter, and invisible characters do not count.

    Examples
    --------
    >>> is_same_name("Brain ", "brain"), is_same_name("brain", "knee")
    (True, False)
    """
    first, second = (
        "".join(char for char in unicodedata.normalize("NFKC", one).casefold() if char.isprintable()).split()
        for one in (name, other)
    )
    return first == second


def check_domain_name(name: str) -> None:
    """Refuse a name that cannot be a key of an `nn.ModuleDict`, or that stands for a learning rate."""
    if len(name) > LONGEST_NAME:
        raise UldaError(f"a domain needs a name of at most {LONGEST_NAME} characters, but it begins with {name[:20]!r}")
    if not name or "." in name:
        raise UldaError(f"a domain needs a name without dots, but it is {name!r}")
    if hasattr(nn.ModuleDict(), name) or name in RESERVED:
        raise UldaError(f"a domain cannot be called {name!r}, which has a meaning of its own; give it another name")
