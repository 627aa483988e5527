"""Variables that look like settings, places for sockets that are none, and standard streams that are closed.

Red when a Kubernetes service called `relevo` ends the start, when an empty variable is a value, when a folder of a
living server is removed or one of a dead server stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.build.ledger import database_location
from relevo.build.runtime_folder import MAX_BASE_CHARACTERS, candidates, runtime_folder, sweep
from relevo.core.errors import SettingsError, StartError
from relevo.environment import read_environment
from relevo.settings import Settings

KUBERNETES = {
    "RELEVO_PORT": "tcp://10.0.0.1:8000",
    "RELEVO_SERVICE_HOST": "10.0.0.1",
    "RELEVO_SERVICE_PORT": "8000",
    "RELEVO_SERVICE_PORT_HTTP": "8000",
    "RELEVO_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "RELEVO_PORT_8000_TCP_PROTO": "tcp",
    "RELEVO_PORT_8000_TCP_PORT": "8000",
    "RELEVO_PORT_8000_TCP_ADDR": "10.0.0.1",
    "RELEVO_METRICS_SERVICE_HOST": "10.0.0.2",
    "RELEVO_METRICS_PORT": "udp://10.0.0.2:53",
    "RELEVO_METRICS_PORT_53_UDP_ADDR": "10.0.0.2",
}


def test_what_kubernetes_makes_for_a_service_is_left_alone_with_one_line() -> None:
    found = read_environment(KUBERNETES, Settings.model_fields)
    assert found.values == {}
    (note,) = found.notes
    assert all(name in note for name in KUBERNETES) and "Kubernetes" in note


def test_a_port_is_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_PORT", "8123")
    assert Settings().port == 8123
    monkeypatch.setenv("RELEVO_PORT", KUBERNETES["RELEVO_PORT"])
    assert Settings().port == Settings.model_fields["port"].default


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        if name != "api_key":
            monkeypatch.setenv(f"RELEVO_{name.upper()}", "")
    assert Settings() == Settings.model_construct(**{n: f.default for n, f in Settings.model_fields.items()})


def test_an_empty_key_does_not_open_a_server_that_is_meant_to_be_closed() -> None:
    assert read_environment({"RELEVO_API_KEY": ""}, Settings.model_fields).values == {"api_key": ""}


def test_a_name_that_no_setting_has_is_told_with_the_nearest() -> None:
    found = read_environment({"RELEVO_MAX_NUM_SEQ": "3", "RELEVO_XYZ": "", "RELEVO_CPU_PATH": "avx2"}, ["max_num_seqs"])
    (note,) = found.notes
    assert "RELEVO_MAX_NUM_SEQ (is RELEVO_MAX_NUM_SEQS meant?)" in note and "RELEVO_XYZ" in note
    assert "CPU_PATH" not in note and found.values == {}


def test_a_long_temporary_folder_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 110)
    long.mkdir()
    assert long not in candidates({"TMPDIR": str(long)})
    with runtime_folder({"TMPDIR": str(long)}) as folder:
        assert len(folder) < MAX_BASE_CHARACTERS + 25 and Path(folder).stat().st_mode & 0o777 == 0o700
    assert not Path(folder).exists()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_folder_is_this_users_whatever_the_umask(umask: int) -> None:
    former = os.umask(umask)
    try:
        with runtime_folder({}) as folder:
            assert Path(folder).stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(former)


def test_without_a_place_to_write_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.build.runtime_folder.candidates", lambda environ: [tmp_path / "missing"])
    with pytest.raises(StartError, match=r"missing.*tmpfs at /tmp.*TMPDIR"), runtime_folder({}):
        pass


def test_folders_of_dead_servers_go_and_those_of_living_ones_stay() -> None:
    base = candidates({})[0]
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal\nfrom relevo.build.runtime_folder import runtime_folder\nwith runtime_folder({}) as f:\n"
            "    open(f + '/w0.sock', 'w')\n    print(f, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9 and left.is_dir()
    with runtime_folder({}) as living:  # its start sweeps
        assert not left.exists()
        sweep(base)
        assert Path(living).is_dir()


def test_a_missing_home_is_said_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(SettingsError, match=r"--data-dir.*--database-url memory"):
        database_location(None, None)
    with pytest.raises(SettingsError, match="--data-dir ~nobody-of-that-name/x"):
        database_location("~nobody-of-that-name/x", None)


def test_closed_standard_streams_lead_nowhere() -> None:
    """Red when the next socket gets the number of one of them."""
    program = (
        "import os, socket, sys\nfrom relevo.cli.main import open_standard_streams\nopen_standard_streams()\n"
        "assert None not in (sys.stdin, sys.stdout, sys.stderr)\nprint('x'); sys.stderr.write('y')\n"
        "import subprocess\n"
        "child = subprocess.call([sys.executable, '-c', 'import os; [os.fstat(fd) for fd in (0, 1, 2)]'])\n"
        "sys.exit(child or (0 if socket.socket().fileno() > 2 else 9))"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, check=False).returncode == 0
