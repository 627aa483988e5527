"""The units are what systemd understands, hardened, and end as Relevo ends.

Red when a unit waits less than a stop may take, restarts what a person has to mend, or gives back a right.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.settings import Settings
from relevo.supervisor import GATEWAY_END_S

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
WORKERS_END_S = 5.0  # after the gateways, see Supervisor._shut_down
MAX_EXPOSURE = 2.0  # of 10, as systemd-analyze counts

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def service(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return dict(parser["Service"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_stop_may_take_as_long_as_it_takes(unit: Path) -> None:
    drain_s = float(Settings.model_fields["shutdown_timeout_s"].default)
    assert float(service(unit)["TimeoutStopSec"]) >= drain_s + GATEWAY_END_S + WORKERS_END_S + 5
    assert service(unit)["KillMode"] == "mixed", "a signal to every process would end workers under their requests"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_what_a_person_has_to_mend_is_not_started_again(unit: Path) -> None:
    said = service(unit)
    assert said["Restart"] == "on-failure" and said["RestartPreventExitStatus"] == "2"
    assert said["Type"] == "notify" and said["User"] != "root"


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    """Every word of it: an unknown one is a warning, which is refused too."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/relevo/bin/relevo", sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert (checked.returncode, complaints) == (0, [])


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_unit_has_few_rights(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout[-300:]


@needs_systemd
def test_a_misspelt_word_is_found(tmp_path: Path) -> None:
    """Of the test above: it would be worth nothing if systemd-analyze kept silent."""
    unit = tmp_path / "relevo.service"
    text = UNITS[0].read_text().replace("/opt/relevo/bin/relevo", sys.executable)
    unit.write_text(text.replace("WatchdogSec=", "WatchdogSecs="))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert "WatchdogSecs" in checked.stderr


def test_settings_of_the_environment_files_exist() -> None:
    named = re.findall(r"^#?RELEVO_([A-Z_]+)=", (FOLDER / "relevo.env").read_text(), re.MULTILINE)
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_the_joined_machine_is_started_with_options_that_there_are() -> None:
    shown = CliRunner().invoke(make_app("join"), ["join", "--help"], env={"COLUMNS": "200"}).output
    command = service(FOLDER / "relevo-join.service")["ExecStart"] + (FOLDER / "join.env").read_text()
    flags = set(re.findall(r"--[a-z-]+", command))
    assert {"--token-file", "--role"} <= flags and all(flag in shown for flag in flags)
