"""`relevo check` when something goes wrong on its own side: what it did is undone, and what it found is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from check_faults import FAULTS
from scripted_answers import MODEL
from scripted_openai import MAX_MODEL_LEN, ScriptedDisturber, ScriptedOpenAI, scripted
from test_check_cli import app, in_thread, runner
from test_check_parts import sleeper, state_of

from relevo.check import disturber as disturber_module
from relevo.check.catalogue import CHECKS
from relevo.check.context import CheckContext
from relevo.check.disturber import Action, ChaosCommand, LocalProcesses
from relevo.check.facts import Facts
from relevo.check.run import run_one
from relevo.check.server import Server
from relevo.core.errors import SettingsError, StartError

BY_ID = {one.id: one for one in CHECKS}
NEVER = "no-process-has-this-in-its-command-line"

# ---- the command to repeat a failure ---------------------------------------------------------------------------------


def test_the_curl_of_a_wrong_key_is_one_line_and_sends_the_wrong_key() -> None:
    """Red when a printed command is broken at the terminal's width, or sends the right key instead of the wrong one."""
    with in_thread(ScriptedOpenAI(FAULTS["errors.authentication"], api_key="secret-key")) as url:
        done = runner.invoke(app, ["check", url, "--only", "errors.authentication", "--api-key", "secret-key"])
    (line,) = (line for line in done.output.splitlines() if line.startswith("  repeat"))
    words = shlex.split(line)
    assert json.loads(words[-1])["model"] == MODEL
    assert "Authorization: Bearer wrong-key" in words and "secret-key" not in done.output


def test_no_key_at_all_is_no_header() -> None:
    assert "Authorization" not in Server("h", "key").exchange("POST", "/", b"{}", {"Authorization": ""}).request.headers


# ---- mistakes of the person at the terminal --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--processes", ""], "every process"),
        (["--chaos-command", "it's"], "not a command line"),
        (["--chaos-command", ""], "is empty"),
        (["--api-key", "a\nb"], "line break"),
        (["--json", "/no/such/folder/out.json"], "name a file"),
        (["--processes", NEVER, "--only", "chaos"], "no process fits"),
    ],
)
def test_a_mistake_is_one_sentence_before_the_first_check(flags: list[str], told: str) -> None:
    with in_thread(ScriptedOpenAI()) as url:
        done = runner.invoke(app, ["check", url, "--only", "shape.health", *flags])
    assert done.exit_code == 2 and told in done.output and "shape.health" not in done.output, done.output
    assert isinstance(done.exception, SystemExit)


def test_a_password_in_the_url_is_refused_since_reports_show_urls() -> None:
    done = runner.invoke(app, ["check", "http://name:secret@127.0.0.1:1"])
    assert done.exit_code == 2 and "--api-key" in done.output and "secret" not in done.output


# ---- a run that ends early -------------------------------------------------------------------------------------------


def test_a_chaos_command_that_fails_loses_nothing_that_was_found(tmp_path: Path) -> None:
    out, junit = tmp_path / "out.json", tmp_path / "out.xml"
    command = "sh -c 'case $0 in list) echo 1;; stop) exit 3;; esac'"
    flags = ["--only", "shape.health", "--only", "chaos.stopped_is_noticed", "--chaos-command", command]
    with in_thread(ScriptedOpenAI()) as url:
        done = runner.invoke(app, ["check", url, *flags, "--json", str(out), "--junit", str(junit)])
    assert done.exit_code == 2, done.output
    told = json.loads(out.read_text())
    assert [one["id"] for one in told["results"]] == ["shape.health"]
    assert "status 3" in told["ended_early"] and "status 3" in done.output
    assert b"shape.health" in junit.read_bytes()


@contextmanager
def running_check(url: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "relevo", "check", url, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_sigterm_continues_the_stopped_process_and_tells_what_was_found(tmp_path: Path) -> None:
    """Red when a CI that ends the run leaves a process stopped."""
    out = tmp_path / "out.json"
    flags = ["--only", "shape.health", "--only", "chaos.long_pause", "--pause-s", "500", "--json", str(out)]
    with in_thread(ScriptedOpenAI()) as url:
        async with sleeper("stopped") as process:
            with running_check(url, *flags, "--processes", str(process.pid)) as check:
                while state_of(process.pid) != "T" and check.poll() is None:  # noqa: ASYNC110  # the kernel sets no event
                    await asyncio.sleep(0.01)
                check.send_signal(signal.SIGTERM)
                output, _ = await asyncio.to_thread(check.communicate)
                assert check.returncode == 143, output
                assert state_of(process.pid) != "T"
    assert [one["id"] for one in json.loads(out.read_text())["results"]] == ["shape.health"]


class Broken(ScriptedDisturber):
    """Stops, and is broken off before it says so."""

    error: Exception | None = None

    async def do(self, action: str, target: str) -> bool:
        self.told.append((str(action), target))
        if action != Action.STOP:
            return True
        if self.error is not None:
            raise self.error
        self.server.disturbed.set()
        await asyncio.Event().wait()
        return True


@pytest.mark.parametrize("fails", [True, False])
async def test_a_stop_that_is_broken_off_is_undone(fails: bool) -> None:
    """Red when Ctrl-C, or a failure, of the command that stops a process leaves it stopped."""
    server = ScriptedOpenAI()
    broken = Broken(server)
    broken.error = StartError("it failed") if fails else None
    async with scripted(server) as url, Server(url, None, 60.0) as client:
        context = CheckContext(client, Facts(MODEL, MAX_MODEL_LEN), Random(1), 0.1, disturber=broken)
        checking = asyncio.create_task(run_one(BY_ID["chaos.stopped_is_noticed"], context, 60.0))
        if not fails:
            await server.disturbed.wait()
            checking.cancel()
        with pytest.raises((StartError, asyncio.CancelledError)):
            await checking
    assert [action for action, _ in broken.told] == ["stop", "continue"]


# ---- whom a disturber reaches ----------------------------------------------------------------------------------------


async def test_a_process_that_was_not_named_is_not_signalled() -> None:
    """Its pid may have been a target's, which is gone. Red when an old pid is enough to be killed."""
    async with sleeper("a stranger") as process:
        disturber = LocalProcesses.of([NEVER])
        assert await disturber.do(Action.STOP, str(process.pid)) and await disturber.do(Action.KILL, str(process.pid))
        assert state_of(process.pid) not in ("T", "Z")


def test_patterns_and_commands_that_say_nothing_are_refused() -> None:
    for spec in ("", " "):
        with pytest.raises(SettingsError, match="every process"):
            LocalProcesses.of(["1", spec])
    for command in ("", "'"):
        with pytest.raises(SettingsError, match="--chaos-command"):
            ChaosCommand.of(command)


async def test_a_chaos_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a child that holds the output open keeps the run waiting, or acts after it was given up."""
    monkeypatch.setattr(disturber_module, "COMMAND_TIMEOUT_S", 1.0)
    told = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {shlex.quote(str(told))}; wait"
    with pytest.raises(StartError, match="took longer"):
        async with asyncio.timeout(60):
            await ChaosCommand(f"sh -c {shlex.quote(script)}").targets()
    with contextlib.suppress(FileNotFoundError):  # it is gone
        while state_of(int(told.read_text())) != "Z":  # noqa: ASYNC110  # the kernel sets no event
            await asyncio.sleep(0.01)


async def test_a_chaos_command_may_leave_something_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts a killed process again. Red when its output is waited for to the end."""
    monkeypatch.setattr(disturber_module, "COMMAND_TIMEOUT_S", 30.0)
    told = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {shlex.quote(str(told))}"
    assert await ChaosCommand(f"sh -c {shlex.quote(script)}").do(Action.KILL, "1")
    os.kill(int(told.read_text()), signal.SIGKILL)
