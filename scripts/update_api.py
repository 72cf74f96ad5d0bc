"""Write the API reference, docs/api/*.md, from the docstrings: ``python -m scripts.update_api``."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ulda
from scripts.docstring_markdown import docstring_markdown

FOLDER = Path(__file__).parents[1] / "docs" / "api"
INDEX = "README.md"

FURTHER = {
    "ulda.errors": ["MissingExtraError", "UldaError"],
    "ulda.metrics": ["PER_SLICE", "PER_VOLUME", "Convention", "Scores", "evaluate", "nmse", "psnr", "ssim", "ssim_map"],
    "ulda.reconstruction": ["FileSummary", "reconstruct_file"],
    "ulda.data.measurements": ["Undersampling"],
    "ulda.models.bundled": ["bundled_names", "model_folder"],
    "ulda.training.config": ["Config", "DataConfig", "MaskConfig", "load_config"],
    "ulda.training.presets": ["Preset", "preset_names"],
    "ulda.training.slices": ["load_task"],
    "ulda.methods.runs": ["train"],
    "ulda.methods.unet": ["UNet"],
    "ulda.evaluation.assessment": ["Assessment", "assess"],
    "ulda.evaluation.histories": ["gradient_curves", "objective_curves", "validation_curves"],
    "ulda.evaluation.learned": ["psnr_per_phase"],
    "ulda.evaluation.similarity": ["centred_kernel_alignment", "normalised_cross_correlation"],
}
"""What the guide uses from modules without ``__all__``."""

PACKAGES = ("io", "physics", "data", "models", "solvers", "training", "methods", "evaluation", "experiments")
"""One page each, in the order in which they build on each other; what lies outside them is on the first page."""

WIDTH = 100
"""Longer signatures are broken, one parameter to a line."""


def public_names() -> dict[str, list[str]]:
    """Return the public names of each module, each name where a user imports it from."""
    packages = [m.name for m in pkgutil.walk_packages(ulda.__path__, "ulda.") if m.ispkg]
    listed = {name: getattr(importlib.import_module(name), "__all__", []) for name in ["ulda", *packages]}
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    for module, names in (listed | FURTHER).items():
        values = {name: getattr(importlib.import_module(module), name) for name in names}
        new = [name for name, value in values.items() if id(value) not in seen]
        seen |= set(map(id, values.values()))
        if new:
            found[module] = sorted(new, key=str.lower)
    return found


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    names = public_names()
    by_page: dict[str, list[str]] = {_page(module): [] for module in names}
    for module in names:
        by_page[_page(module)].append(module)
    texts = {page: _page_text(page, modules, names) for page, modules in by_page.items()}
    return {INDEX: _index(names)} | texts


def main() -> None:
    """Write the pages, and remove those that are no more."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _is_documented(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _page(module: str) -> str:
    package = module.split(".")[1] if "." in module else ""
    return f"{package}.md" if package in PACKAGES else "ulda.md"


def _index(names: dict[str, list[str]]) -> str:
    lines = [
        "# API reference",
        "",
        "Every public name, from the docstrings of the code. The examples in it run in the tests. Written by",
        "`python -m scripts.update_api`.",
    ]
    for module, entries in sorted(names.items(), key=lambda item: _order(item[0])):
        lines += ["", f"## `{module}`", "", _about(module), "", "| name | what it is |", "|---|---|"]
        lines += [f"| [`{name}`]({_page(module)}#{name.lower()}) | {_summary(module, name)} |" for name in entries]
    return "\n".join(lines) + "\n"


def _order(module: str) -> tuple[int, str]:
    page = _page(module).removesuffix(".md")
    return (PACKAGES.index(page) if page in PACKAGES else -1, module)


def _about(module: str) -> str:
    return docstring_markdown((importlib.import_module(module).__doc__ or "").strip().splitlines()[0])


def _summary(module: str, name: str) -> str:
    """Return the first paragraph of what is known about a name, on one line of a table."""
    text = _docstring(module, name)
    return docstring_markdown(text.strip().split("\n\n")[0]).replace("\n", " ").replace("|", "\\|")


def _page_text(page: str, modules: list[str], names: dict[str, list[str]]) -> str:
    first, *others = sorted(modules, key=_order)
    parts = [f"# {first}", f"{_about(first)} [All names](README.md)"]
    for module in [first, *others]:
        parts += [f"**`{module}`**: {_about(module)}"] if module != first else []
        for name in names[module]:
            parts += _entry(module, name, page, names)
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(module: str, name: str, page: str, names: dict[str, list[str]]) -> Iterator[str]:
    value = getattr(importlib.import_module(module), name)

    def link(target: str) -> str:
        return "" if target == name else _link(target, page, names)

    yield f"## {name}"
    if not _is_documented(value):
        yield f"```py\n{module}.{_assignment(module, name)[0]}\n```"
    elif inspect.isclass(value) and issubclass(value, Exception):
        yield f"```py\nclass {module}.{name}\n```"
    else:
        yield f"```py\n{_signature(f'{module}.{name}', value)}\n```"
    yield docstring_markdown(_docstring(module, name), link)
    for member, kind in _members(value) if inspect.isclass(value) else []:
        text = inspect.getdoc(kind) or ""
        shown = kind.fget if isinstance(kind, property) else getattr(value, member)
        suffix = " (property)" if isinstance(kind, property) else ""
        yield f"### {name}.{member}{suffix}"
        if not isinstance(kind, property):
            yield f"```py\n{_signature(member, shown)}\n```"
        yield docstring_markdown(text, link)


def _link(target: str, page: str, names: dict[str, list[str]]) -> str:
    """Return where a name is documented: a full one, or a class by its own name; empty for nowhere."""
    for module, entries in names.items():
        for name in entries:
            if target in (f"{module}.{name}", name if name[0].isupper() else None):
                there = _page(module)
                return f"#{name.lower()}" if there == page else f"{there}#{name.lower()}"
    return ""


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties of a class and of those of ours that it builds on."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("ulda"):
            continue
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name.startswith("_") or name in seen:
                continue
            if isinstance(function, property) or (inspect.isfunction(function) and inspect.getdoc(function)):
                seen.add(name)
                yield name, function


def _signature(name: str, value: Any) -> str:
    """Write a signature as in the code, broken into lines where it is long."""
    signature = inspect.signature(value)
    # pydantic shows the types it made of them
    fields = inspect.get_annotations(value) if inspect.isclass(value) else {}
    parameters = [
        parameter.replace(annotation=_as_written(fields.get(parameter.name, parameter.annotation)))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    returned = inspect.Signature.empty if inspect.isclass(value) else _as_written(signature.return_annotation)
    signature = signature.replace(parameters=parameters, return_annotation=returned)
    line = _stable(f"{name}{signature}")
    if len(line) <= WIDTH:
        return line
    rows = []
    keyword_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            rows.append("    *,")
        rows.append(f"    {parameter},")
    result = str(signature.replace(parameters=[]))[2:]
    return _stable("\n".join([f"{name}(", *rows, f"){result}"]))


class _Written(str):
    """An annotation that `inspect` shows without the quotes of a string."""

    def __repr__(self) -> str:
        return str(self)


def _as_written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def _stable(text: str) -> str:
    """Leave out values without a text of their own, whose place in memory would differ from run to run."""
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>|<factory>", "...", text)


def _docstring(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    return (inspect.getdoc(value) or "") if _is_documented(value) else _assignment(module, name)[1]


@cache
def _assignment(module: str, name: str) -> tuple[str, str]:
    """Return the statement that gives a public constant or type its value, and the docstring after it."""
    value = getattr(importlib.import_module(module), name)
    modules = [m.name for m in pkgutil.walk_packages(ulda.__path__, "ulda.") if m.name != "ulda.__main__"]
    for home in map(importlib.import_module, [module, *modules]):
        if getattr(home, name, None) is not value:
            continue
        source = inspect.getsource(home)
        for statement, following in pairwise(ast.parse(source).body):
            if name in _assigned(statement) and isinstance(following, ast.Expr):
                text = following.value.value if isinstance(following.value, ast.Constant) else ""
                return ast.get_source_segment(source, statement) or "", str(text)
    raise LookupError(f"{module}.{name} is assigned nowhere, or has no docstring")


def _assigned(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


if __name__ == "__main__":
    main()
