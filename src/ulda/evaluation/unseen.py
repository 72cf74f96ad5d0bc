"""No score on slices that a model was trained on may be called a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ulda.data import Domain
from ulda.errors import UldaError

_INSTEAD = "evaluate other subjects, e.g. with --split test"
_SPLIT_FIRST = (
    "the data has no splits: give it some with `ulda data import` and `ulda data split`, adapt to that file, and "
    "evaluate its split test"
)


def check_unseen(domain: Domain, base: Mapping[str, Any], adapter: Mapping[str, Any] | None = None) -> list[str]:
    """Refuse slices that a model was trained on, and return what else a reader of the result must know.

    Subjects are compared by their labels. Where two people of different data share a label, import the data with other
    labels.

    Parameters
    ----------
    domain
        The slices to evaluate on.
    base
        What ``model.json`` says.
    adapter
        What ``adapter.json`` says; None without an adapter.
    """
    sources = _mapping(base.get("card")).get("data")
    trained = [_mapping(source) for source in (sources if isinstance(sources, list) else [])]
    if adapter is not None:
        trained.append({"fingerprint": adapter.get("data"), "subjects": adapter.get("subjects")})
    fingerprint, instead = domain.fingerprint(), _INSTEAD if any(domain.label("split")) else _SPLIT_FIRST
    for facts in trained:
        if facts.get("fingerprint") == fingerprint:
            raise UldaError(f"the model was trained on exactly these slices, so this would be no result; {instead}")
        if seen := _common(domain, facts.get("subjects")):
            others = f" and on {len(seen) - 1} more of these subjects" if len(seen) > 1 else ""
            raise UldaError(
                f"the model was trained on the subject {seen[0]}{others}, so this would be no result; {instead}"
            )
    notes = []
    if adapter is not None and not isinstance(adapter.get("subjects"), list):
        notes.append("the adapter does not say whom it was trained on; make sure that none of them is evaluated here")
    if adapter is not None and (seen := _common(domain, _mapping(adapter.get("validation")).get("subjects"))):
        notes.append(
            f"the adapter was chosen by its scores on {len(seen)} of these subjects ({seen[0]} is one), so the result "
            f"is optimistic; {instead}"
        )
    return notes


def _common(domain: Domain, subjects: object) -> list[str]:
    return sorted(set(domain.subjects) & {str(s) for s in subjects}) if isinstance(subjects, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
