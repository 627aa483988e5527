"""The packaged dashboards: what the generator makes, of metrics that exist, told and coloured; `relevo dashboards`.

Red when a panel is changed without `make dashboards`, asks for a metric that is not exported, has no unit or
description, or a colour outside the palette; and when the command writes over files that are not its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.core.errors import SettingsError
from relevo.telemetry.metric import Kind
from relevo.telemetry.metric_table import TABLE

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "src" / "relevo" / "dashboards"
BOARDS = sorted((PACKAGED / "grafana").glob("*.json"))
PALETTE = {"#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#999999"}  # Okabe and Ito, and grey
METRIC = re.compile(r"\b(?:vllm:|relevo:|http_)\w+")


def exported() -> set[str]:
    ends = ("_bucket", "_sum", "_count")
    names = {metric.name for metric in TABLE}
    return names | {metric.name + end for metric in TABLE if metric.kind is Kind.HISTOGRAM for end in ends}


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in BOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            if panel["type"] != "row":
                yield f"{path.stem}: {panel['title']}", panel


@pytest.mark.skipif(
    find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not here: make setup"
)
def test_packaged_dashboards_are_what_the_generator_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "dashboards" / "generate.py", tmp_path], check=True, timeout=120)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [path.name for path in BOARDS]
    for path in BOARDS:
        made = (tmp_path / path.name).read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8") == made, f"run `make dashboards`: {path.name} is out of date"


def test_dashboards_and_rules_ask_only_for_what_is_exported() -> None:
    rules = [(path.name, path.read_text(encoding="utf-8")) for path in PACKAGED.glob("relevo-*.yml")]
    boards = [(path.name, path.read_text(encoding="utf-8")) for path in BOARDS]
    for name, text in rules + boards:
        recorded = set(re.findall(r"\bjob(?:_model)?:\w+:\w+", text))
        text = re.sub(r"\bjob(?:_model)?:\w+:\w+", "", text) if recorded else text
        assert set(METRIC.findall(text)) - exported() == set(), name


@pytest.mark.parametrize("panel", [panel for _, panel in panels()], ids=[name for name, _ in panels()])
def test_a_panel_can_be_read(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert re.fullmatch(r"[A-Z][^\n]+[;,] (and )?normal [^\n]+\.", panel["description"])
    assert panel["description"].count(". ") == 0, "one sentence"
    assert panel["targets"]
    assert set(re.findall(r'"(?:fixedColor|color)": "(#?\w+)"', json.dumps(panel))) <= PALETTE


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap_and_numbers_are_unique(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "job", "model", "role", "worker"]


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not here; on Debian: apt-get install prometheus"
)
def test_a_panel_that_may_be_empty_shows_its_series_once_they_are_there(tmp_path: Path) -> None:
    """Gateways up: its series exist with several gateways only."""
    [panel] = [panel for name, panel in panels() if name.endswith(": Gateways up")]
    expr = panel["targets"][0]["expr"].replace("$job", "relevo")
    case = {
        "interval": "1m",
        "input_series": [{"series": 'relevo:gateway_up{job="relevo",gateway="1"}', "values": "0 0"}],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "1m", "exp_samples": [{"labels": '{gateway="1"}', "value": 0}]}
        ],
    }
    (tmp_path / "case.yml").write_text(json.dumps({"tests": [case]}), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "case.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the command -----------------------------------------------------------------------------------------------------


def dashboards(*arguments: str) -> list[str]:
    result = CliRunner().invoke(make_app("dashboards"), ["dashboards", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_command_writes_all_that_is_packaged_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = [Path(line).relative_to(folder) for line in dashboards(str(folder))]
    assert set(written) == {path.relative_to(PACKAGED) for path in PACKAGED.rglob("*") if path.is_file()}
    for name in written:
        assert (folder / name).read_bytes() == (PACKAGED / name).read_bytes()
    assert len(dashboards(str(folder))) == len(written)


def test_the_command_leaves_other_and_changed_files_alone_unless_forced(tmp_path: Path) -> None:
    dashboards(str(tmp_path))
    (tmp_path / "relevo-alerts.yml").write_text("mine", encoding="utf-8")
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"note\.txt, relevo-alerts\.yml; name another folder, or add --force"):
        dashboards(str(tmp_path))
    assert (tmp_path / "relevo-alerts.yml").read_text(encoding="utf-8") == "mine"
    dashboards(str(tmp_path), "--force")
    assert (tmp_path / "relevo-alerts.yml").read_bytes() == (PACKAGED / "relevo-alerts.yml").read_bytes()
    assert (tmp_path / "note.txt").read_text(encoding="utf-8") == "mine"


def test_the_command_says_why_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SettingsError, match="is a file; name a folder"):
        dashboards(str(tmp_path / "file"))
    with pytest.raises(SettingsError, match=r"cannot write .*; name another folder"):
        dashboards(str(tmp_path / "file" / "below"))
