"""docs/exactness.md is made of docs/exactness.json and has every family and format.

Red when a family or a case is added and `make exactness` was not run, when a row is further off than the page says, or
when the page is edited by hand.
"""

from __future__ import annotations

from pathlib import Path

from exact_cases import WHOLE
from exactness_page import PAGE, missing, page, read_rows

from relevo.engine.models.families import MODELS

DOCS = Path(__file__).parents[2] / "docs"
ROWS = read_rows(DOCS)


def test_the_page_is_made_of_its_rows() -> None:
    assert (DOCS / PAGE).read_text(encoding="utf-8") == page(ROWS), "run `make exactness`"


def test_every_family_is_measured_in_every_kind_of_file_that_is_read_of_it() -> None:
    assert missing(ROWS) == [], "run `make exactness`"
    found = {(ROWS[case.name].architecture, case.stored) for case in WHOLE}
    read = {(name, "safetensors") for name in MODELS}
    read |= {(name, "GGUF") for name, spec in MODELS.items() if spec.gguf is not None}
    assert found == read, "exact_cases.FAMILIES says other families than there are"


def test_every_row_is_as_exact_as_the_page_says() -> None:
    assert {name: missed for name, row in ROWS.items() if (missed := row.missed())} == {}
