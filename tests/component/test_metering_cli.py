"""`relevo keys` and `relevo usage` over a file: what they print, and what they refuse in one sentence."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.core.errors import RelevoError
from relevo.gateway.metering.database import SqliteDatabase
from relevo.gateway.metering.ledger import LedgerRow, put_rows
from relevo.gateway.metering.schema import prepare

ROW = LedgerRow(
    request_id="r0",
    response_id="cmpl-0",
    key_id="",
    tenant="",
    model="smollm2",
    outcome="finished",
    prompt_tokens=1_234_567,
    cached_tokens=1_000_000,
    completion_tokens=1,
    unbilled_prompt_tokens=0,
    unbilled_completion_tokens=0,
    input_cost_per_token="0.00000014999999999999998",
    cache_read_input_token_cost="0",
    output_cost_per_token="0",
    cost="0.03518504999999999530866",
    started_at_ms=1_796_000_400_000,
    ended_at_ms=1_796_000_400_000,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("RELEVO_DATABASE_URL", raising=False)
    monkeypatch.setenv("RELEVO_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    runner = CliRunner()

    def call(*arguments: str) -> Result:
        return runner.invoke(make_app(), list(arguments))

    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    prepare(connection)
    connection.write([put_rows([ROW, replace(ROW, request_id="r1", key_id="key-7", outcome="aborted")])])
    connection.close()
    return call


def test_usage_as_csv_and_json_gives_every_digit(run: Any) -> None:
    by_key = run("usage", "--by", "key,outcome", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(by_key.stdout)))
    assert [(row["key"], row["outcome"], row["requests"]) for row in rows] == [
        ("", "finished", "1"),
        ("key-7", "aborted", "1"),
    ]
    assert rows[0]["cost"] == ROW.cost
    total = json.loads(run("usage", "--format", "json").stdout)["total"]
    assert total["cost"] == "0.07037009999999999061732"


def test_no_cell_of_a_csv_is_taken_for_a_formula(run: Any, tmp_path: Path) -> None:
    """Names with commas and line breaks stay one cell, and what begins like a formula is text."""
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "a,b", 'a "b"', "a\nb"]
    connection = SqliteDatabase(tmp_path / "relevo.db").connect()
    connection.write([put_rows(replace(ROW, request_id=name, model=name) for name in names)])
    connection.close()
    rows = list(csv.DictReader(io.StringIO(run("usage", "--by", "model", "--format", "csv").stdout)))
    shown = {row["model"] for row in rows}
    assert shown >= {"a,b", 'a "b"', "a\nb", "'=cmd|' /C calc'!A0", "'+1", "'-1", "'@SUM(A1)"}
    assert {row["requests"] for row in rows} <= {"1", "2"}


def test_a_table_on_a_narrow_terminal_cuts_no_figure(run: Any) -> None:
    shown = run("usage").stdout
    assert "1,234,567" in shown and ROW.cost in shown and "0.07037009999999999061732" in shown and "…" not in shown
    assert "(no key)" in shown and "total" in shown


def test_usage_between_two_moments_and_of_one_key(run: Any) -> None:
    def num_requests(*arguments: str) -> int:
        return int(json.loads(run("usage", "--format", "json", *arguments).stdout)["total"]["requests"])

    assert num_requests("--since", "2026-11-30", "--until", "2026-12-01") == 2
    assert num_requests("--since", "2026-11-30T01:00:01") == 0
    assert num_requests("--key", "key-7") == 1


def test_a_key_is_shown_once_and_then_only_its_beginning(run: Any) -> None:
    key = run("keys", "create", "web shop", "--budget", "25.50", "--budget-period", "month").stdout.strip()
    assert key.startswith("rv-") and len(key) > 40
    listed = run("keys", "list").stdout
    assert key[:9] in listed and key not in listed and "web shop" in listed and "25.5 month" in listed
    assert run("keys", "revoke", key[:9]).exit_code == 0
    assert json.loads(run("keys", "list", "--format", "json").stdout)[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("keys", "create", "--budget", "much"), "--budget much"),
        (("keys", "create", "--budget", "0"), "--budget 0"),
        (("keys", "create", "--budget", "-1"), "--budget -1"),
        (("keys", "create", "--budget", "NaN"), "--budget NaN"),
        (("keys", "create", "--budget", "1e999999"), "--budget 1e999999"),
        (("keys", "create", "--budget", "1e-300"), "--budget 1e-300"),
        (("keys", "create", "--budget", f"1{'0' * 15}.1"), "--budget 1000"),
        (("keys", "create", "x" * 201), "NAME"),
        (("keys", "create", "a\nb"), "printable"),
        (("keys", "create", "--tenant", "x" * 201), "--tenant"),
        (("keys", "create", "--expires", "soon"), "--expires soon"),
        (("keys", "create", "--expires", "2001-01-01"), "over already"),
        (("keys", "revoke", "rv-nothing"), "rv-nothing"),
        (("keys", "list", "--database-url", "memory"), "memory"),
        (("keys", "list", "--database-url", "relevo.db"), "--data-dir"),
        (("usage", "--by", "colour"), "--by"),
        (("usage", "--since", "yesterday"), "--since"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(run: Any, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, RelevoError)
    assert said in result.exception.message and "\n" not in result.exception.message
