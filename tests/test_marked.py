from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import marked
from scripts.marked import between, replaced, write_between
from ulda.errors import UldaError

BEGIN, END = "<!-- speed -->", "<!-- end -->"
PAGE = f"""# Page

<!-- other -->
1
{END}

{BEGIN}
| 2 s |

- old
{END}

<!-- last -->
3
{END}
"""


def test_only_the_part_between_the_marks_is_replaced() -> None:
    """Also where other parts end with the same mark."""
    assert between(PAGE, BEGIN, END) == "| 2 s |\n\n- old"
    assert replaced(PAGE, BEGIN, END, "| 1 s |") == PAGE.replace("| 2 s |\n\n- old", "| 1 s |")


@given(st.text())
def test_what_was_written_is_read(body: str) -> None:
    page = replaced(PAGE, BEGIN, END, body)
    assert between(page, BEGIN, END) == body
    assert replaced(page, BEGIN, END, between(PAGE, BEGIN, END)) == PAGE


def test_a_part_without_lines_is_empty() -> None:
    assert between(f"{BEGIN}\n{END}", BEGIN, END) == between(BEGIN + END, BEGIN, END) == ""


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (f"text\n{END}\n", f"the mark {BEGIN} stands 0 times"),
        (PAGE + PAGE, f"the mark {BEGIN} stands 2 times"),
        (f"{END}\n{BEGIN}\ntext\n", f"the mark {END} is missing behind {BEGIN}"),
    ],
    ids=["no beginning", "two beginnings", "no end"],
)
def test_a_page_with_wrong_marks_is_refused_and_stays(page: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    with pytest.raises(UldaError, match=f"^{message}"):
        between(page, BEGIN, END)
    with pytest.raises(UldaError, match=rf"^page\.md: {message}"):
        write_between(path, BEGIN, END, "new")
    assert path.read_text(encoding="utf-8") == page


def test_a_file_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    write_between(path, BEGIN, END, "30 ± 1")
    assert path.read_text(encoding="utf-8") == replaced(PAGE, BEGIN, END, "30 ± 1")


def test_the_examples_run() -> None:
    assert doctest.testmod(marked).failed == 0
