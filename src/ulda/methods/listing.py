"""What methods there are, with their parameters, what adapts, and where they were published."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import torch

from ulda.errors import UldaError
from ulda.methods.registry import METHODS, method_title, new_method
from ulda.methods.trainable import TrainableMethod

COUNTED_SOURCES = ("first source", "second source")
"""The parameters of a method are counted for two sources."""


@dataclass(frozen=True)
class MethodFacts:
    """One row of the list of methods.

    Attributes
    ----------
    name
        What `ulda train --method` calls it; for a classical method the name in tables.
    title
        Its name for people.
    n_parameters
        Real parameters with two sources and the default sizes; None where nothing is learned.
    n_adapted
        How many of them, or beside them, learn for a new domain.
    adapts
        What learns for a new domain, in words.
    citation
        Authors, year and where it was published.
    """

    name: str
    title: str
    n_parameters: int | None
    n_adapted: int | None
    adapts: str
    citation: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


CLASSICAL = (
    MethodFacts("zero-filling", "zero-filling", None, None, "nothing", "the adjoint of the measurement"),
    MethodFacts(
        "TV",
        "total variation",
        None,
        None,
        "nothing",
        "Rudin, Osher and Fatemi 1992, Nonlinear total variation based noise removal algorithms, Physica D 60; "
        "solved as in Condat 2013, JOTA 158(2)",
    ),
    MethodFacts(
        "wavelet",
        "l1-wavelet",
        None,
        None,
        "nothing",
        "Lustig, Donoho and Pauly 2007, Sparse MRI, MRM 58(6); solved as in Beck and Teboulle 2009, SIAM J. Imaging "
        "Sci. 2(1)",
    ),
)
"""The methods without parameters, as `ulda evaluate` names them."""


def list_methods() -> list[MethodFacts]:
    """Return the learned methods in the order of the registry, then the classical ones."""
    learned = []
    for name in METHODS:
        model = weightless(name, COUNTED_SOURCES)
        with torch.device("meta"):
            n_adapted = model.n_trainable(adapt=True)
        title = method_title(name)
        learned.append(MethodFacts(name, title, model.n_parameters, n_adapted, model.adapts, model.citation))
    return [*learned, *CLASSICAL]


def weightless(name: str, sources: tuple[str, ...] = (), preset: str | None = None, **sizes: Any) -> TrainableMethod:
    """Return a method for looking at its sizes: its weights have no values, and take no time or memory to make."""
    with torch.device("meta"):
        return new_method(name, sources, preset=preset, **sizes)


def default_sizes(name: str) -> dict[str, Any]:
    """Return the sizes of a method, which `network` in a configuration may change, and their defaults.

    Examples
    --------
    >>> default_sizes("dncn")
    {'filters': 32, 'layers': 5, 'cascades': 5}
    """
    return weightless(name).sizes


def check_sizes(name: str, sizes: dict[str, Any], preset: str | None = None) -> None:
    """Refuse sizes that a method does not have or cannot be built with.

    Examples
    --------
    >>> check_sizes("dncn", {"filter": 8})
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: unknown size 'filter' of dncn; did you mean 'filters'?
    """
    defaults = weightless(name, preset=preset).sizes
    for key, value in sizes.items():
        if key not in defaults:
            near = get_close_matches(key, defaults, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its sizes are {', '.join(defaults)}"
            raise UldaError(f"unknown size {key!r} of {name}; {hint}")
        if not _is_of_the_kind(value, defaults[key]):
            raise UldaError(f"the size {key} of {name} must be like {defaults[key]!r}, but it is {value!r}")
    try:
        weightless(name, COUNTED_SOURCES, preset=preset, **sizes)
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UldaError(f"{name} cannot have these sizes ({error})") from error


def methods_table() -> str:
    """Return all methods as a Markdown table."""
    head = "| method | name | parameters | adapt to a domain | what adapts | published |"
    rows = [
        f"| {row.title} | `{row.name}` | {_count(row.n_parameters)} | {_count(row.n_adapted)} | {row.adapts} | "
        f"{row.citation} |"
        for row in list_methods()
    ]
    return "\n".join([head, "|---|---|---:|---:|---|---|", *rows])


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _is_of_the_kind(value: object, default: object) -> bool:
    """Tell whether a value from a file can stand for a default: a whole number for a number, a list for a tuple."""
    if default is None or isinstance(value, bool) or isinstance(default, bool):
        return default is None or type(value) is type(default)
    if isinstance(default, list | tuple):
        return isinstance(value, list | tuple)
    return isinstance(value, (int, float) if isinstance(default, float) else type(default))
