"""Write the table of all keys of a training configuration, the end of docs/train.md, from the code.

Run: ``python -m scripts.update_config_table``.
"""

from __future__ import annotations

from pathlib import Path

from ulda.training.config_text import config_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "train.md"

if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(text[: text.index("| key |")] + config_table() + "\n", encoding="utf-8")
