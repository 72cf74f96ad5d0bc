"""Imports of `ulda` point one way: a package imports only from packages above it, and no modules import in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ulda"

ORDER = (
    "errors",
    "version",
    "metrics",
    "io",
    "physics",
    "data",
    "models",
    "solvers",
    "training",
    "methods",
    "reconstruction",
    "__init__",
    "evaluation",
    "experiments",
    "presets",
    "cli",
    "__main__",
)
"""The packages, and the modules beside them, from top to bottom; ``__init__`` is that of ``ulda`` itself."""


class Import(NamedTuple):
    """One import: the module it stands in, its line, and the module it names."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} in line {self.line}"


def imports_of(source: Path) -> list[Import]:
    """Return all imports of the package in a folder from itself: also those in functions and for types alone."""
    paths = {_module(source, path): path for path in sorted(source.rglob("*.py"))}
    return [
        Import(module, line, imported)
        for module, path in paths.items()
        for line, imported in _imported(module, path, frozenset(paths))
    ]


def _module(source: Path, path: Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: Path, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # what is named after "import" may be a module, too
            names = [name if (name := f"{base}.{alias.name}") in known else base for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in dict.fromkeys(names) if name in known)


def layer(module: str) -> str:
    """Return the package below ``ulda``, or the module beside the packages, that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def upward_imports(imports: Iterable[Import], order: tuple[str, ...] = ORDER) -> list[str]:
    """Return a sentence for every import from a package below the one it stands in."""
    return [
        f"{found}, but {layer(found.imported)} is below {layer(found.importer)}"
        for found in imports
        if order.index(layer(found.imported)) > order.index(layer(found.importer))
    ]


def circles(imports: Iterable[Import]) -> list[str]:
    """Return the circles of modules that a walk along the imports meets, each with its imports."""
    leaving: dict[str, list[Import]] = {}
    for found in imports:
        leaving.setdefault(found.importer, []).append(found)
    finished: set[str] = set()
    sentences: list[str] = []

    def walk(module: str, path: list[Import]) -> None:
        for found in leaving.get(module, []):
            way = [*path, found]
            modules = [step.importer for step in way]
            if found.imported in modules:
                sentences.append("; ".join(map(str, way[modules.index(found.imported) :])))
            elif found.imported not in finished:
                walk(found.imported, way)
        finished.add(module)

    for module in list(leaving):
        if module not in finished:
            walk(module, [])
    return sentences


def test_every_package_has_its_place() -> None:
    found = {layer(_module(SOURCE, path)) for path in SOURCE.rglob("*.py")}
    assert found <= set(ORDER), f"say in ORDER where these stand: {sorted(found - set(ORDER))}"


def test_imports_point_upwards_in_the_list() -> None:
    assert upward_imports(imports_of(SOURCE)) == []


def test_no_circle() -> None:
    assert circles(imports_of(SOURCE)) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Write a package without a fault."""
    files = {
        "__init__.py": "",
        "errors.py": "",
        "io/__init__.py": "from ulda.io.files import write",
        "io/files.py": "import json\n\nfrom ulda.errors import UldaError",
        "data/__init__.py": "",
        "data/domain.py": "from ulda.io import files\nfrom ..errors import UldaError\n\ndef f(): import ulda.io.files",
        "cli/__init__.py": "from ulda.data.domain import Domain",
    }
    for name, text in files.items():
        (tmp_path / "ulda" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ulda" / name).write_text(text)
    return tmp_path / "ulda"


def test_a_tree_without_a_fault(tree: Path) -> None:
    found = imports_of(tree)
    assert set(found) == {
        ("ulda.io", 1, "ulda.io.files"),
        ("ulda.io.files", 3, "ulda.errors"),
        ("ulda.data.domain", 1, "ulda.io.files"),
        ("ulda.data.domain", 2, "ulda.errors"),
        ("ulda.data.domain", 4, "ulda.io.files"),
        ("ulda.cli", 1, "ulda.data.domain"),
    }
    assert upward_imports(found) == circles(found) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ulda.data.domain import Domain",
        "import ulda.data.domain as d",
        "from ulda.data import domain",
        "from .data import domain",
        "def late():\n    from ulda.data.domain import Domain",
        "if TYPE_CHECKING:\n    from ulda.data.domain import Domain",
    ],
)
def test_an_upward_import_and_its_circle_are_named(tree: Path, line: str) -> None:
    (tree / "errors.py").write_text(line)
    number = len(line.splitlines())
    upward = f"ulda.errors imports ulda.data.domain in line {number}"
    assert upward_imports(imports_of(tree)) == [f"{upward}, but data is below errors"]
    assert circles(imports_of(tree)) == [
        f"ulda.data.domain imports ulda.io.files in line 1; ulda.io.files imports ulda.errors in line 3; {upward}"
    ]


def test_a_circle_within_a_package(tree: Path) -> None:
    (tree / "io" / "files.py").write_text("def write():\n    from ulda.io import hdf5")
    (tree / "io" / "hdf5.py").write_text("from .files import write")
    found = imports_of(tree)
    assert upward_imports(found) == []
    assert circles(found) == [
        "ulda.io.files imports ulda.io.hdf5 in line 2; ulda.io.hdf5 imports ulda.io.files in line 1"
    ]


def test_the_package_itself_is_below_what_it_shows(tree: Path) -> None:
    (tree / "io" / "files.py").write_text("import ulda")
    assert upward_imports(imports_of(tree)) == ["ulda.io.files imports ulda in line 1, but __init__ is below io"]
