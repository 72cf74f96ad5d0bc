"""The commands of the documents: all are parsed, and those that do not take hours run."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from scripts import update_outputs
from scripts.update_outputs import PAGES, is_alike, run_page
from tests.guide_files import write_files, write_own_files
from tests.test_documents import DOCUMENTS, ROOT
from ulda.cli import app
from ulda.data import Domain

GUIDE = [path for path in DOCUMENTS if path.parent.name != "api"]


def shell_lines(text: str) -> Iterator[str]:
    """Yield the commands of the shell blocks: all lines of ``sh``, those behind ``$`` of ``console``."""
    for block in re.finditer(r"```(sh|console)\n(.*?)```", text, re.DOTALL):
        for line in block[2].replace("\\\n", " ").splitlines():
            if block[1] == "sh" or line.startswith("$ "):
                yield line.removeprefix("$ ")


def ulda_commands(text: str) -> list[list[str]]:
    """Return the words of every call of ``ulda`` in the shell blocks, up to a pipe or a redirection."""
    found = []
    for line in shell_lines(text):
        words = shlex.split(line, comments=True)
        if words[:1] == ["ulda"]:
            ends = [i for i, word in enumerate(words) if word in ("|", ">", "&&")]
            found.append(words[1 : min(ends, default=len(words))])
    return found


def parse(words: list[str]) -> None:
    """Let the real command line parse a command, without running it."""
    command, rest = find_command(words)
    if not hasattr(command, "commands"):
        command.make_context(words[0], list(rest))


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that some words name, and the words after its name."""
    command: Any = get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options_of(command: Any) -> set[str]:
    return {"--help", "-h"} | {name for p in command.params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("path", GUIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_blocks_are_accepted_by_the_command_line(path: Path) -> None:
    for words in ulda_commands(path.read_text()):
        try:
            parse(words)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the document is
            pytest.fail(f"{path.name}: ulda {shlex.join(words)}: {error}")


@pytest.mark.parametrize("path", GUIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_sentences_name_what_exists(path: Path) -> None:
    """In a sentence a command may be cut short, but its name and its options exist."""
    prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for text in re.findall(r"`ulda ([^`]+)`", prose):
        command, rest = find_command([word for word in re.sub(r"[|]\S+", "", text).split() if word != "..."])
        unknown = {word.partition("=")[0] for word in rest if word.startswith("-")} - options_of(command)
        assert not unknown, f"{path.name}: ulda {text} has no {', '.join(unknown)}"


def test_a_wrong_command_would_be_found() -> None:
    for wrong in ("adopt --data x", "data import x", "data import x --out y --sise 3", "verify", "demo --slices many"):
        with pytest.raises(Exception, match=r".+"):
            parse(wrong.split())
    parse(["data", "import", "x", "--out", "y", "--size", "3"])
    assert len([words for path in GUIDE for words in ulda_commands(path.read_text())]) > 40


def test_installations_go_through_the_constraints_and_name_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line for path in GUIDE for line in shell_lines(path.read_text()) if line.startswith("pip install")]
    assert len(lines) > 4
    for line in lines:
        assert "-c constraints.txt" in line, line
        for names in re.findall(r"\[([\w,]+)\]", line):
            assert set(names.split(",")) <= set(extras), line
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(rows) == set(extras)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_show_output_print_it(page: Path, tmp_path: Path) -> None:
    """Every command of the page runs, in order and in one folder, and prints what the page says."""
    text = page.read_text()
    assert is_alike(text, new := run_page(text, tmp_path)), new


def test_the_tour_goes_from_data_to_a_report_without_a_download() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    steps = [words[0] for words in ulda_commands(text)]
    assert steps == ["demo", "data", "data", "adapt", "evaluate", "reconstruct", "verify", "report"]
    assert not re.search(r"https?://|curl |wget ", text)


def test_a_page_that_fails_or_says_something_else_is_found(tmp_path: Path) -> None:
    page = "```console\n$ echo 12 dB\n12 dB\n```\n\n```python\nprint('yes')\n```\n\n```text\nyes\n```\n"
    assert run_page(page, tmp_path) == page
    assert not is_alike(page.replace("12 dB\n```", "17 dB\n```"), run_page(page, tmp_path))
    assert not is_alike(page.replace("\nyes", "\nno"), run_page(page, tmp_path))
    with pytest.raises(RuntimeError, match="ended with 1"):
        run_page("```console\n$ false\n```\n", tmp_path)
    assert doctest.testmod(update_outputs).failed == 0


def test_the_commands_for_each_format_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small file of every format; each import gives a domain file that opens."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = ulda_commands((ROOT / "docs" / "data.md").read_text())
    for words in commands:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"ulda {shlex.join(words)}: {done.output} {done.exception}"
    written = [words[words.index("--out") + 1] for words in commands if "--out" in words]
    assert len(written) == 11
    assert {name: len(Domain.open(name)) for name in written} == {
        "knee.h5": 20,
        "fastmri-knee.h5": 8,
        "mrd-brain.h5": 2,
        "nifti-brain.h5": 8,
        "dicom-cardiac.h5": 4,
        "bart-phantom.h5": 1,
        "matlab-scan.h5": 4,
        "numpy-images.h5": 4,
        "numpy-scans.h5": 4,
        "natural.h5": 4,
        "both.h5": 8,
    }
    assert {*Domain.open("knee.h5").label("split")} == {"train", "val", "test"}
    assert {*Domain.open("dicom-cardiac.h5").label("contrast")} == {"cine"}


@pytest.mark.parametrize("name", ["train", "self-supervised", "reconstruct", "evaluate", "report"])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small files and with a tiny model in the place of the bundled one; every file they name is written."""
    monkeypatch.setattr("ulda.models.bundled.FOLDER", tmp_path / "bundled")
    write_own_files(tmp_path, scan_is_whole=name == "report")
    monkeypatch.chdir(tmp_path)
    for words in ulda_commands((ROOT / "docs" / f"{name}.md").read_text()):
        out = Path(words[words.index("--out") + 1]) if "--out" in words else tmp_path
        again = ["--force"] if "--out" in words and out.exists() else []
        done = CliRunner().invoke(app, [*words, *again])
        assert done.exit_code == 0, f"ulda {shlex.join(words)}: {done.output} {done.exception}"
        assert list(out.parent.glob(f"{out.stem}*")), words  # of several pictures each has a number


def test_every_format_has_a_section_with_a_command() -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    table = re.findall(r"^\| ([\w/ ]+?) \|", text.split("## Formats")[1].split("## Format by format")[0], re.MULTILINE)
    formats = [name for name in table if name != "format"]
    sections = re.findall(r"^### (.+)\n\n```sh\nulda data import ", text, re.MULTILINE)
    assert len(formats) == len(sections) == 9
    for name, section in zip(formats, sections, strict=True):
        assert name.split()[0].lower() == section.split()[0].lower()
