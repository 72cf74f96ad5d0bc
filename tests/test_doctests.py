from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ulda

MODULES = sorted(m.name for m in pkgutil.walk_packages(ulda.__path__, "ulda.") if m.name != "ulda.__main__")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
