"""Generated pages are up to date. Red when a setting or metric changes and `make docs` was not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from relevo.cli.docs import ENGINES_GUIDE, PAGES, with_promises

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "make"), PAGES.items())
def test_page_is_what_the_code_says(name: str, make: Callable[[], str]) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == make(), f"run `make docs`: docs/{name} is out of date"


def test_tables_of_other_engines_are_what_the_code_says() -> None:
    guide = (DOCS / ENGINES_GUIDE).read_text(encoding="utf-8")
    assert guide == with_promises(guide), f"run `make docs`: docs/{ENGINES_GUIDE} is out of date"
