"""Mutate the seeds, run the commands that read them, and count how they end.

``make fuzz N=20000`` runs it and writes ``benchmarks/results/fuzz.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from scripts.marked import write_between
from tests.fuzz.mutations import mutate
from tests.fuzz.sandbox import ACCEPTED, BAD, REFUSED, Ending, Limits, prepare, run
from tests.fuzz.seeds import Seed, make_seeds
from ulda.io.fingerprints import fingerprint

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
BEGIN, END = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
MEMORY = Path("/dev/shm")
"""Where files cost no time, if the system has it."""

ENCODINGS = ("utf-8", "utf-8", "utf-8", "latin-1", "ascii")
"""What the terminals of people can show."""

KINDS = (ACCEPTED, REFUSED, *BAD)


@dataclass(frozen=True)
class Case:
    """A mutated file, what read it, and how that ended."""

    number: int
    kind: str
    name: str
    mutation: str
    command: str
    ending: Ending

    def __str__(self) -> str:
        """Say in a line what happened."""
        return (
            f"case {self.number}: {self.command}, with {self.mutation} in {self.name} ({self.kind}): "
            f"{self.ending.kind} {self.ending.detail}"
        )


def campaign(seeds: list[Seed], numbers: range, folder: Path, seed: int = 0) -> Iterator[Case]:
    """Run cases; each depends on the seed and its own number alone, so that it can be run again by itself.

    Parameters
    ----------
    seeds
        From `make_seeds`.
    numbers
        The numbers of the cases.
    folder
        Where to work.
    seed
        Seed of all mutations.
    """
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        chosen = seeds[number % len(seeds)]
        files, name, mutation = mutated(chosen, rng)
        command = chosen.commands[number // len(seeds) % len(chosen.commands)]
        write(files, folder)
        said = f"ulda {' '.join(command)}" if isinstance(command, list) else f"reading of the {chosen.kind}"
        limits = Limits(encoding=rng.choice(ENCODINGS))
        yield Case(number, chosen.kind, name, mutation, said, run(command, folder, limits))


def run_all(n_cases: int, jobs: int, seed: int = 0) -> list[Case]:
    """Run the cases from 0 on in so many processes."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        place = Path(name)
        (place / "seeds").mkdir()
        seeds = make_seeds(place / "seeds")
        prepare()
        # forked, the processes have the seeds, whose commands cannot be sent
        workers = [os.fork() or _work(seeds, range(job, n_cases, jobs), place / str(job), seed) for job in range(jobs)]
        for worker in workers:
            os.waitpid(worker, 0)
        lines = [line for job in range(jobs) for line in (place / f"{job}.txt").read_text().splitlines()]
    found = [Case(**fields | {"ending": Ending(**fields["ending"])}) for fields in map(json.loads, lines)]
    if len(found) < n_cases:
        raise RuntimeError(f"{n_cases - len(found)} cases were not run; see the traceback above")
    return sorted(found, key=lambda case: case.number)


def _work(seeds: list[Seed], numbers: range, folder: Path, seed: int) -> int:
    """Run cases in a forked process and write a line for each; it does not return."""
    try:
        with folder.with_suffix(".txt").open("w", encoding="utf-8") as stream:
            for case in campaign(seeds, numbers, folder, seed):
                stream.write(json.dumps(asdict(case)) + "\n")
                if case.ending.kind in BAD:
                    print(case, file=sys.stderr, flush=True)  # noqa: T201
    except BaseException:  # noqa: BLE001 - a defect of the harness is to be seen, and the process to end here
        traceback.print_exc()
    os._exit(0)


def mutated(seed: Seed, rng: random.Random) -> tuple[dict[str, bytes], str, str]:
    """Return the files of a seed with one mutation, the name of the mutated file, and that of the mutation."""
    name = rng.choice(seed.mutated)
    content, mutation = mutate(name, seed.files[name], rng)
    files = seed.files | {name: content}
    facts = str(Path(name).with_suffix(".json"))
    if name.endswith(".safetensors") and facts in files and rng.random() < 0.5:
        with contextlib.suppress(Exception):
            # as a stranger would who made the file: its fingerprint is that of its tensors
            weights = fingerprint(sorted(load_tensors(content).items()))
            files[facts] = json.dumps(json.loads(files[facts]) | {"weights": weights}).encode()
            mutation += ", with its fingerprint"
    return files, name, mutation


def write(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a case into the folder ``in``, and empty all others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("in", "out", "tmp"):
        (folder / name).mkdir(parents=True)
    for name, content in files.items():
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def summary(cases: list[Case]) -> dict[str, Any]:
    """Count the endings by kind of file, and list what must not be, each signature with its first case."""
    table = []
    for kind in dict.fromkeys(case.kind for case in cases):
        counts = Counter(case.ending.kind for case in cases if case.kind == kind)
        table.append({"kind": kind, "cases": counts.total()} | {name: counts[name] for name in KINDS})
    bad: dict[str, list[Case]] = {}
    for case in cases:
        if case.ending.kind in BAD:
            bad.setdefault(f"{case.ending.kind}: {case.ending.detail}".removesuffix(": "), []).append(case)
    found = [
        {"signature": name, "cases": len(those), "first": those[0].number, "example": str(those[0])}
        for name, those in sorted(bad.items(), key=lambda item: -len(item[1]))
    ]
    total = Counter(case.ending.kind for case in cases)
    return {"total": {name: total[name] for name in KINDS}, "kinds": table, "bad": found}


def markdown(found: dict[str, Any]) -> str:
    """Return the counts as a table; of what must not be, only those columns that have some."""
    columns = [ACCEPTED, REFUSED, *(name for name in BAD if found["total"][name])]
    lines = [f"| kind of file | cases | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    total = {"kind": "all", "cases": sum(found["total"].values())} | found["total"]
    lines += [
        f"| {row['kind']} | {row['cases']} | {' | '.join(str(row[name]) for name in columns)} |"
        for row in (*found["kinds"], total)
    ]
    none = ", ".join(f"0 {name}" for name in BAD if not found["total"][name])
    return "\n".join([*lines, "", f"{none}."] if none else lines)


def _again(numbers: list[int], seed: int) -> None:
    """Run single cases, in folders that stay."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        seeds = make_seeds(Path(name))
        prepare()
        for number in numbers:
            folder = Path(f"fuzz-{number}").resolve()
            for case in campaign(seeds, range(number, number + 1), folder, seed):
                print(f"{case}; its files are in {folder}/in")  # noqa: T201


def main() -> None:
    """Run a campaign from the command line, or single cases again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, nargs="*", help="Run these cases, say how they end, and keep their files.")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    start = time.perf_counter()
    if chosen.only:
        _again(chosen.only, chosen.seed)
        return
    cases = run_all(chosen.cases, chosen.jobs, chosen.seed)
    found = {"command": f"make fuzz N={chosen.cases}", "seed": chosen.seed, **summary(cases)}
    found["seconds"] = round(time.perf_counter() - start)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown(found))  # noqa: T201
    if chosen.out == RESULT:
        write_between(ROOT / "SECURITY.md", BEGIN, END, markdown(found))
    sys.exit(os.EX_OK if not found["bad"] else 1)


if __name__ == "__main__":
    main()
