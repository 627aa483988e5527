"""`relevo doctor` in odd places: it finds what is wrong, never fails itself, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_openai_server import FakeOpenAI, served_in_thread

from relevo.gateway.metering.database import SqliteDatabase
from relevo.gateway.metering.keys import create_key, revoke_key
from relevo.gateway.metering.schema import prepare
from relevo.policy.admission.key_limits import KeyLimits


def doctor(home: Path, *arguments: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status, and the findings by name."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "XDG_"))}
    run = subprocess.run(
        [sys.executable, "-m", "relevo", "doctor", "--port", "0", "--json", *arguments],
        env={**kept, "HOME": str(home), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    told = json.loads(run.stdout)
    found = {finding["name"]: finding for finding in told["findings"]}
    assert told["ok"] == (run.returncode == 0) == all(finding["status"] != "fail" for finding in found.values())
    return run.returncode, found


def test_it_makes_nothing(tmp_path: Path) -> None:
    _, found = doctor(tmp_path)
    assert "will be made" in found["database"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_no_compiler_and_one_core_are_no_faults(tmp_path: Path) -> None:
    core = str(min(os.sched_getaffinity(0)))
    script = f"import os, runpy; os.sched_setaffinity(0, [{core}]); runpy.run_module('relevo', run_name='__main__')"
    run = subprocess.run(
        [sys.executable, "-c", script, "doctor", "fake", "--port", "0"],
        env={**os.environ, "HOME": str(tmp_path), "PATH": "/nonexistent", "CXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "missing: a C++ compiler" in run.stdout and "warn   cores: 1 of " in run.stdout, run.stdout + run.stderr
    assert max(map(len, run.stdout.splitlines())) < 400


def test_a_port_that_another_program_holds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, found = doctor(tmp_path, "--port", str(port))
    assert status == 1
    assert f"process {os.getpid()}" in found["port"]["found"]


@pytest.mark.parametrize(
    ("arguments", "env", "name"),
    [
        (("/nowhere/model.gguf",), {}, "model"),
        ((), {"RELEVO_MAX_NUM_SEQS": "many"}, "settings"),
        (("--data-dir", "/dev/null/relevo"), {}, "data folder"),
        (("--database-url", "nonsense"), {}, "data folder"),
        (("--host", "no such host"), {}, "port"),
    ],
)
def test_what_would_keep_a_server_from_starting_fails(
    arguments: tuple[str, ...], env: dict[str, str], name: str, tmp_path: Path
) -> None:
    status, found = doctor(tmp_path, *arguments, **env)
    assert status == 1
    assert found[name]["status"] == "fail" and found[name]["fix"]


def test_a_long_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    status, found = doctor(tmp_path, TMPDIR=str(folder))
    assert (status, found["temporary folder"]["status"]) == (1, "fail")


def test_the_key_database(tmp_path: Path) -> None:
    path = tmp_path / "data/relevo.db"
    connection = SqliteDatabase(path).connect()
    prepare(connection)
    for name in ("kept", "revoked"):
        create_key(connection, name=name, tenant=None, limits=KeyLimits(), is_admin=False, expires_at_ms=None, now_ms=1)
    revoke_key(connection, _ids(path)[1], now_ms=2)
    _, found = doctor(tmp_path, "--data-dir", str(path.parent))
    assert "1 of 2 API keys can be used" in found["database"]["found"]
    path.chmod(0o644)
    _, found = doctor(tmp_path, "--data-dir", str(path.parent))
    assert found["database"]["status"] == "warn" and str(path) in found["database"]["fix"]
    connection.close()
    for file in path.parent.iterdir():
        file.unlink()
    path.write_bytes(b"no database at all" * 100)
    status, found = doctor(tmp_path, "--data-dir", str(path.parent))
    assert (status, found["data folder"]["status"]) == (1, "fail")


def _ids(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT key_id FROM api_keys ORDER BY rowid")]


def test_a_server_that_is_asked(tmp_path: Path) -> None:
    with served_in_thread(FakeOpenAI()) as url:  # which has no /health
        status, found = doctor(tmp_path, "--url", url)
    assert status == 1 and "is it a Relevo server?" in found["server"]["found"]
    status, found = doctor(tmp_path, "--url", "http://127.0.0.1:9")
    assert status == 1 and "cannot reach" in found["server"]["found"]
