from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

import ulda
from scripts.update_outputs import PAGES

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITHOUT_OUTPUT = [path for path in DOCUMENTS if path not in PAGES]
"""The pages that show what they print are run from top to bottom by `tests/test_guide.py`."""


def test_the_version_is_one() -> None:
    assert version("ulda") == ulda.__version__
    assert f"version: {ulda.__version__}" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_hold(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", WITHOUT_OUTPUT, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_examples_in_documents_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(example, path.name, "exec"), {})
