"""The table of limits in docs/guides/security.md names what exists. Red when a setting, metric or test is renamed, or a
row promises a bound that nothing tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relevo.settings import Settings
from relevo.telemetry.metric_table import BY_NAME

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "security.md"
COLUMNS = ["resource", "bound", "setting", "metric", "test"]


def limits() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Limits\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert rows[0] == COLUMNS
    return rows[2:]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", limits(), ids=lambda row: row[0])
def test_a_limit_names_settings_metrics_and_tests_that_exist(row: list[str]) -> None:
    assert len(row) == len(COLUMNS)
    resource, bound, setting, metric, test = row
    assert resource and bound
    for flag in named(setting):
        assert flag.removeprefix("--").replace("-", "_") in Settings.model_fields, f"{flag} is no setting"
    for name in named(metric):
        assert name in BY_NAME, f"{name} is no metric"
    assert named(test), f"nothing tests the bound of {resource}"
    for name in named(test):
        assert list((ROOT / "tests").rglob(name)), f"there is no {name}"


def test_flags_that_the_page_speaks_of_exist() -> None:
    flags = set(re.findall(r"`--([a-z-]+)", PAGE.read_text(encoding="utf-8")))
    assert {flag for flag in flags if flag.replace("-", "_") not in Settings.model_fields} == set()
