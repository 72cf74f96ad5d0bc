"""A few reconstructions of every run, kept for the figures: images and the path of the solver, in one small file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.data import Domain
from ulda.evaluation.comparison import Comparison, compare
from ulda.evaluation.learned import Learned
from ulda.io.atomic import atomic_output
from ulda.io.numpy_input import read_npz
from ulda.io.untrusted import reading
from ulda.methods import ULDA, Method
from ulda.physics import Mask
from ulda.solvers import Trace
from ulda.solvers.batch import BRANCHES
from ulda.training.slices import choose_slices

N_EXAMPLES = 3
TRACED_MULTIPLE = 8
"""So many times its phases the solver is followed."""

TRACED = ("phi", "eps", "grad_norm", "branch")


@dataclass(frozen=True)
class Examples:
    """Example slices of one domain in one run.

    Attributes
    ----------
    indices
        Which test slices they are ``(n,)``.
    reference, images
        Magnitude images ``(n, H, W)``; the references have peak 1.
    phases
        T, the number of phases the method reconstructs with; 0 for a method that is not traced.
    trace
        ``phi``, ``eps`` and ``grad_norm`` after each iteration ``(iterations + 1, n)``, from before the first one, and
        ``branch``, how that iteration stepped, a place in `ulda.solvers.trace.BRANCHES`; NaN where there is none, as
        once a slice has stopped.
    """

    indices: NDArray[np.int64]
    reference: NDArray[np.float32]
    images: NDArray[np.float32]
    phases: int = 0
    trace: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def example_indices(subjects: Sequence[str], n_examples: int = N_EXAMPLES) -> list[int]:
    """Return which slices are kept: of as many subjects as possible, spread evenly, and in each of them, too.

    Parameters
    ----------
    subjects
        The subject of each slice.
    n_examples
        How many are kept, where there are so many.

    Examples
    --------
    >>> example_indices(["a", "b", "c", "d", "e"] * 3), example_indices(["a"] * 30), example_indices(["a"] * 9 + ["b"])
    ([5, 7, 9], [5, 15, 25], [2, 6, 9])
    """
    names = list(dict.fromkeys(subjects))
    shown = [names[k] for k in _spread(len(names), min(n_examples, len(names)))]
    places = {name: [i for i, subject in enumerate(subjects) if subject == name] for name in shown}
    pool = [subject for subject in subjects if subject in places]
    counts = Counter(pool[i] for i in choose_slices(pool, min(n_examples, len(pool))))
    return sorted(places[name][k] for name, n in counts.items() for k in _spread(len(places[name]), n))


def _spread(length: int, n: int) -> list[int]:
    """Return n places in a list of a length, each in the middle of its part: the ends of a volume show little."""
    return [(2 * i + 1) * length // (2 * n) for i in range(n)]


def take_examples(comparison: Comparison, method: Method, domain: str, test: Domain, mask: Mask) -> Examples:
    """Take the examples of a test, and follow the solver on them where the method is one.

    Parameters
    ----------
    comparison
        The test, with one method.
    method, domain, test, mask
        What was tested, on what.
    """
    indices = example_indices(test.subjects)
    (images,) = comparison.reconstructions.values()
    phases, trace = 0, dict[str, NDArray[np.float64]]()
    if isinstance(method, ULDA):
        phases, found = method.n_phases, list[Trace]()
        longer = Learned(method, domain, TRACED_MULTIPLE * phases, found.append)
        compare({"longer": longer}, test.take(indices), mask, acquisition="ideal", batch_size=len(indices))
        trace = trace_arrays(found[0])
    return Examples(np.array(indices), comparison.reference[indices].numpy(), images[indices].numpy(), phases, trace)


def trace_arrays(trace: Trace) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of a record as arrays ``(iterations + 1, n)``, NaN once a slice has stopped."""
    found = {name: np.full((len(trace) + 1, trace.n_samples), np.nan) for name in TRACED}
    for sample in range(trace.n_samples):
        steps = trace.steps(sample)
        path = {
            "phi": [steps[0].phi_before, *(step.phi for step in steps)],
            "eps": [steps[0].eps, *(step.eps for step in steps)],
            "grad_norm": [steps[0].grad_norm_before, *(step.grad_norm for step in steps)],
            "branch": [np.nan, *(BRANCHES.index(step.branch) for step in steps)],
        }
        for name, values in path.items():
            found[name][: len(steps) + 1, sample] = values
    return found


def save_examples(path: Path, domain: str, examples: Examples) -> None:
    """Write the examples of a domain into the file of a run, beside those of its other domains."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    if path.exists():
        arrays |= read_npz(path)
    arrays |= {
        f"{domain}.indices": examples.indices,
        # half precision: a picture has 256 greys
        f"{domain}.reference": examples.reference.astype(np.float16),
        f"{domain}.images": examples.images.astype(np.float16),
        f"{domain}.phases": np.array(examples.phases),
    } | {f"{domain}.{name}": values for name, values in examples.trace.items()}
    with atomic_output(path, overwrite=True) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def load_examples(path: Path) -> dict[str, Examples]:
    """Read the examples of a run by domain; none where there is no file."""
    if not path.exists():
        return {}
    with reading(path, "the examples of a run", "remove it and run the experiment again"):
        arrays = read_npz(path)
        return {name.partition(".")[0]: _examples(arrays, name.partition(".")[0]) for name in arrays}


def _examples(arrays: Mapping[str, NDArray[Any]], domain: str) -> Examples:
    phases = int(arrays[f"{domain}.phases"])
    return Examples(
        arrays[f"{domain}.indices"],
        arrays[f"{domain}.reference"].astype(np.float32),
        arrays[f"{domain}.images"].astype(np.float32),
        phases,
        {name: arrays[f"{domain}.{name}"] for name in TRACED} if phases else {},
    )
