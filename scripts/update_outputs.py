"""Run the pages of the guide that show output, and write into them what is printed.

``python -m scripts.update_outputs``, or with the names of pages. In such a page a ``console`` block holds commands
behind ``$`` with their output below, and the output of a ``python`` block stands in a ``text`` block right after it.
All blocks of a page run in one folder, from the top to the bottom.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = tuple(DOCS / name for name in ("install.md", "tour.md", "certificate.md"))

BLOCK = re.compile(r"```(console|python)\n(.*?)```(?:\n\n```text\n.*?```)?", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TIME = re.compile(r"\d+(?:\.\d+)? s\b")


def run_page(text: str, folder: Path) -> str:
    """Run all blocks of a page in a folder and return the page with what they print now.

    Raises
    ------
    RuntimeError
        When a command fails; with what it printed.
    """
    return BLOCK.sub(lambda block: _run_block(block[1], block[2], folder), text)


def is_alike(old: str, new: str) -> bool:
    """Tell whether two pages differ in nothing but times, rounding and the widths of tables.

    Examples
    --------
    >>> is_alike("│ TV │ 30.95 ± 0.77 │ in 6 s", "│  TV  │ 30.96 ± 0.77 │ in 11 s")
    True
    >>> is_alike("helped by 0.50 dB", "helped by 0.90 dB"), is_alike("helped", "did not help")
    (False, False)
    """
    words, numbers = zip(*(_words_and_numbers(page) for page in (old, new)), strict=True)
    if words[0] != words[1]:
        return False
    return all(abs(a - b) <= 0.1 + 0.08 * abs(a) for a, b in zip(*numbers, strict=True))


def main() -> None:
    """Rewrite the pages; those named on the command line, or all."""
    for page in [path for path in PAGES if path.name in (sys.argv[1:] or [path.name])]:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(run_page(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")


def _run_block(kind: str, body: str, folder: Path) -> str:
    if kind == "python":
        printed = _run([sys.executable, "-c", body], folder)
        return f"```python\n{body}```" + (f"\n\n```text\n{printed}```" if printed else "")
    commands = [line for line in body.splitlines() if line.startswith("$ ")]
    shown = [f"{command}\n{_run(['bash', '-c', command[2:]], folder)}" for command in commands]
    return f"```console\n{''.join(shown)}```"


def _run(command: list[str], folder: Path) -> str:
    # one thread, so that the numbers do not depend on the machine more than they must; a width for tables
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "dumb"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{command[-1]}\nended with {done.returncode}:\n{done.stdout}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def _words_and_numbers(page: str) -> tuple[str, list[float]]:
    text = TIME.sub("(time)", re.sub(r"[\s\u2500-\u257f]+", " ", page))
    return NUMBER.sub("#", text), [float(number) for number in NUMBER.findall(text)]


if __name__ == "__main__":
    main()
