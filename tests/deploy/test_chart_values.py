"""Values, their schema and the examples agree; needs no helm.

Red when a value has no place in the schema, or an example names one that is not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from relevo import __version__

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "relevo"
EXAMPLES = sorted((CHART.parent / "values").glob("*.yaml"))


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def names(tree: dict[str, Any], of: dict[str, Any], at: str = "") -> set[str]:
    """Of every value that the schema names and not leaves open."""
    if "$ref" in of:
        of = schema()["$defs"][of["$ref"].rpartition("/")[2]]
    found = set()
    for name, each in of.get("properties", {}).items():
        found.add(f"{at}/{name}")
        found |= names({}, each, f"{at}/{name}")
    return found


def written(tree: Any, at: str = "") -> set[str]:
    if not isinstance(tree, dict):
        return set()
    return {f"{at}/{name}" for name in tree} | {
        each for name, child in tree.items() for each in written(child, f"{at}/{name}")
    }


def test_defaults_are_what_the_schema_names() -> None:
    jsonschema.Draft202012Validator(schema()).validate(values())
    said = names({}, schema())
    left_out = {"/global"} | {name for name in said if name.startswith("/poolDefaults/image/")}
    left_out |= {name for name in said if name.endswith(("resources/requests", "resources/limits", "resources/claims"))}
    assert said - written(values()) - left_out == set(), "they have no default that a person could read"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_of_values_that_there_are(path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    jsonschema.Draft202012Validator(schema()).validate(given)
    assert path.read_text().startswith("# "), "it says what it is for"


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_rules_are_those_that_are_packaged() -> None:
    """Links: what the chart brings is not a second copy."""
    for name in ("relevo-alerts.yml", "relevo-recording.yml"):
        path = CHART / "files" / name
        assert path.is_symlink() and path.resolve() == (CHART.parents[2] / "src/relevo/dashboards" / name).resolve()
