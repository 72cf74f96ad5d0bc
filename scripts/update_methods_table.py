"""Write the table of all methods into docs/methods.md, from the code."""

from __future__ import annotations

from pathlib import Path

from ulda.baselines.listing import methods_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- methods -->\n", "<!-- end of methods -->"

if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    DOCUMENT.write_text(f"{before}{methods_table()}\n{after}", encoding="utf-8")
