"""`relevo cluster` as people type it. Red when a secret is shown where others read it, or a mistake has no sentence."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from relevo.build.cluster import enrol_head
from relevo.cli.cluster import app
from relevo.cli.lifetimes import lifetime_s, shown
from relevo.cluster.identity import NodeIdentity
from relevo.cluster.join_token import JoinToken, read_join_token
from relevo.core.errors import SettingsError, StartError
from relevo.core.host_port import HostPort


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def sentence(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, StartError), result.output
    assert result.stdout == "", "nothing that looks like a token"
    return result.exception.message


@pytest.fixture
def folder(tmp_path: Path) -> str:
    result = run("init", "--dir", str(tmp_path / "cluster"), "--name", "box-a")
    assert result.exit_code == 0
    return str(tmp_path / "cluster")


def test_init_prints_a_token_alone_and_says_the_rest_beside(tmp_path: Path) -> None:
    result = run("init", "--dir", str(tmp_path / "x"), "--name", "box-a", "--ttl", "10m")
    identity = NodeIdentity.load(tmp_path / "x")
    token = JoinToken.parse(result.stdout, "stdout")
    assert result.stdout.count("\n") == 1
    assert token.fingerprint.hex() == identity.fingerprint
    assert identity.fingerprint in result.stderr and "10m, once" in result.stderr and "ca.key" in result.stderr
    assert token.text() not in result.stderr


def test_a_token_in_a_file_is_for_its_user_alone(folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = run("token", "--dir", folder, "--name", "b", "--out", str(tmp_path / "token"))
    assert result.stdout == "" and result.exit_code == 0
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    with caplog.at_level(logging.WARNING):
        assert read_join_token(tmp_path / "token", {}).name == "b"
    assert not caplog.records


def test_show_tells_nodes_and_no_secret(folder: str) -> None:
    token = run("token", "--dir", folder).stdout.strip()
    found = json.loads(run("show", "--dir", folder, "--format", "json").stdout)
    assert (found["name"], found["role"], found["signs"], found["open_tokens"]) == ("box-a", "head", True, 2)
    assert [(node["name"], node["state"]) for node in found["nodes"]] == [("box-a", "valid")]
    table = run("show", "--dir", folder)
    assert "box-a" in table.stdout and found["fingerprint"] in table.stdout
    assert token not in table.output + json.dumps(found)


def test_the_default_folder_is_beside_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_DATA_DIR", str(tmp_path / "data"))
    assert run("init", "--name", "a").exit_code == 0
    assert NodeIdentity.load(tmp_path / "data" / "cluster").name == "a"


def test_mistakes_are_sentences_that_say_what_to_change(folder: str, tmp_path: Path) -> None:
    assert "already" in sentence("init", "--dir", folder)
    assert "like 30m" in sentence("token", "--dir", folder, "--ttl", "soon")
    assert "between" in sentence("token", "--dir", folder, "--ttl", "3000d")
    assert "between" in sentence("init", "--dir", str(tmp_path / "y"), "--certificate-life", "1s")
    assert not (tmp_path / "y").exists()
    assert "letters" in sentence("init", "--dir", str(tmp_path / "y"), "--name", "a/b")
    assert not (tmp_path / "y").exists()
    assert "once" in sentence("token", "--dir", folder, "--name", "b", "--reusable")
    assert "the nodes of this cluster are: box-a" in sentence("revoke", "--dir", folder, "b")
    assert "is this box" in sentence("revoke", "--dir", folder, "box-a")
    assert "relevo cluster init" in sentence("show", "--dir", str(tmp_path / "none"))
    (Path(folder) / "ca.key").unlink()
    assert "no key of the authority" in sentence("token", "--dir", folder)
    Path(folder).chmod(0o755)
    assert "chmod 700" in sentence("show", "--dir", folder)


def test_a_further_head_without_a_way_to_enrol_is_said(folder: str, tmp_path: Path) -> None:
    nowhere = [HostPort("127.0.0.1", 1)]
    with pytest.raises(SettingsError, match="--token-file"):
        enrol_head(tmp_path / "c", nowhere, None)
    run("token", "--dir", folder, "--role", "head", "--out", str(tmp_path / "token"))
    with pytest.raises(StartError, match="no head of --join"):
        enrol_head(tmp_path / "c", nowhere, str(tmp_path / "token"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("20s", 20), ("90m", 5400), ("12h", 43200), ("7d", 604800), ("2w", 1209600)]
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert lifetime_s(text) == seconds
    assert lifetime_s(shown(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1.5h", "1 h", "1hh", "99999999s"])
def test_what_is_no_length_of_time(text: str) -> None:
    assert lifetime_s(text) is None
