"""Write the table of all methods into docs/methods.md, from the code: ``python -m scripts.update_methods_table``."""

from __future__ import annotations

from pathlib import Path

from scripts.marked import write_between
from ulda.methods.listing import methods_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- methods -->", "<!-- end of methods -->"

if __name__ == "__main__":
    write_between(DOCUMENT, BEGIN, END, methods_table())
