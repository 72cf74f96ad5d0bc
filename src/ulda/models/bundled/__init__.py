"""The models that come with the package: one folder each, found by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ulda.errors import UldaError
from ulda.io.file_set import finish

ModelKind = Literal["base", "adapter"]

FACTS = {"base": "model.json", "adapter": "adapter.json"}
"""The file by which a folder is known to hold a model."""

FOLDER = Path(__file__).parent


def bundled_names(kind: ModelKind = "base") -> list[str]:
    """Return the names of the bundled bases, or of the bundled adapters."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{FACTS[kind]}"))


def model_folder(name_or_path: str | Path, kind: ModelKind = "base") -> Path:
    """Return the folder of a model: a bundled name goes before a path; ``./base`` is a path.

    Raises
    ------
    UldaError
        When there is neither a bundled model of this name nor a folder; the sentence lists the names.
    """
    if isinstance(name_or_path, str) and name_or_path in bundled_names(kind):
        return FOLDER / name_or_path
    folder = Path(name_or_path)
    for name in FACTS.values():
        finish(folder / Path(name).stem)
    if (folder / FACTS[kind]).is_file():
        return folder
    other: ModelKind = "adapter" if kind == "base" else "base"
    if (folder / FACTS[other]).is_file():
        article = {"base": "a base", "adapter": "an adapter"}
        raise UldaError(f"{folder} holds {article[other]}, but {article[kind]} was asked for")
    if folder.is_dir():
        raise UldaError(f"the folder {folder} holds no {kind}: it has no {FACTS[kind]}")
    known = ", ".join(bundled_names(kind)) or "none"
    raise UldaError(f"there is no bundled {kind} {str(name_or_path)!r} and no such folder; bundled are: {known}")
