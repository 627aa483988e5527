"""The command that brings workers: what it is told, what becomes of its failures, and that it is ended in time."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from in_process_stack import until
from scripted_gateway import status_of
from test_planner_loop import Hand, S
from test_worker_number import Cluster as NumberCluster

from relevo.build.auto_topology import number_config
from relevo.build.scale_command import run_program
from relevo.cli.options import make_settings
from relevo.core.errors import SettingsError
from relevo.planner.scale_command import ScaleCommand
from relevo.policy.scaling.scale_orders import LentNode
from relevo.settings import Settings


@dataclass
class Lender:
    """Implements planner.scale_command.LendingCluster."""

    nodes: list[LentNode] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)

    def lent_nodes(self) -> tuple[LentNode, ...]:
        return tuple(self.nodes)

    def drain(self, node: str, *, for_good: bool) -> bool:
        assert for_good, "it is not to come back"
        self.drained.append(node)
        return True


@dataclass
class Program:
    """A command that is scripted: each run ends with the next status, or fails to start."""

    results: list[int | OSError | None] = field(default_factory=list)  # None: it does not end
    runs: list[tuple[Sequence[str], Mapping[str, str]]] = field(default_factory=list)
    num_ended: int = 0

    async def run(self, words: Sequence[str], variables: Mapping[str, str]) -> int:
        self.runs.append((words, variables))
        result = self.results.pop(0) if self.results else 0
        try:
            if result is None:
                await asyncio.sleep(3600)
            if isinstance(result, OSError):
                raise result
            return result or 0
        finally:
            self.num_ended += 1


@dataclass
class Rig:
    lender: Lender = field(default_factory=lambda: Lender([LentNode("a", 1)]))
    program: Program = field(default_factory=Program)
    clock: Hand = field(default_factory=Hand)
    timeout_s: float = 60.0
    command: ScaleCommand = field(init=False)

    def __post_init__(self) -> None:
        self.command = ScaleCommand(
            model="fake",
            words=("/usr/bin/scale", "--pool", "gpu"),
            timeout_s=self.timeout_s,
            cluster=self.lender,
            run=self.program.run,
            clock=self.clock,
        )

    async def tick(self, wanted: int, after_s: int = 5) -> None:
        self.clock.at_ns += after_s * S
        (one,) = status_of(ready=True).workers
        workers = [replace(one, worker_id=f"{node.name}/unified-0") for node in self.lender.nodes]
        self.command.tick(wanted, "a burst", workers, self.clock.at_ns / 1e9)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_it_is_told_the_number_the_reason_and_who_has_left() -> None:
    rig = Rig(Lender([LentNode("a", 1), LentNode("b", 1)]))
    await rig.tick(2)
    await rig.tick(3)
    assert rig.program.runs == [
        (
            ("/usr/bin/scale", "--pool", "gpu", "3"),
            {"SCALE_WANTED": "3", "SCALE_PRESENT": "2", "SCALE_REASON": "a burst", "SCALE_GIVEN_BACK": ""},
        )
    ]
    await rig.tick(1)
    assert rig.lender.drained == ["b"] and len(rig.program.runs) == 1, "it leaves first"
    rig.lender.nodes.pop()
    await rig.tick(1)
    words, variables = rig.program.runs[-1]
    assert words[-1] == "1" and variables["SCALE_GIVEN_BACK"] == "b"
    assert rig.command.num_commands == {"done": 2}
    assert rig.command.plan()["told"] == 1 and rig.command.plan()["last"] == "done"


async def test_a_failure_is_said_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.program.results = [3, FileNotFoundError(2, "No such file or directory"), 0]
    await rig.tick(1)
    await rig.tick(2)
    assert "/usr/bin/scale 2: it ended with status 3; tried again in 5 s" in caplog.text
    await rig.tick(2, after_s=4)
    assert len(rig.program.runs) == 1, "not yet"
    await rig.tick(2, after_s=1)
    assert "cannot be started: No such file or directory; tried again in 10 s" in caplog.text
    await rig.tick(2, after_s=10)
    assert rig.command.num_commands == {"failed": 2, "done": 1} and rig.command.plan()["last"] == "done"


async def test_one_at_a_time_and_what_takes_too_long_is_ended() -> None:
    rig = Rig(timeout_s=0.05)
    rig.program.results = [None]
    await rig.tick(1)
    await rig.tick(2)
    await rig.tick(4)
    assert len(rig.program.runs) == 1 and rig.command.plan()["is_running"]
    await until(lambda: rig.command.num_commands["timed out"] == 1)
    assert rig.program.num_ended == 1
    await rig.tick(4)
    assert rig.program.runs[-1][0][-1] == "4"


async def test_a_gateway_that_ends_ends_it() -> None:
    rig = Rig()
    rig.program.results = [None]
    await rig.tick(1)
    await rig.tick(2)
    rig.command.close()
    await until(lambda: rig.program.num_ended == 1)


async def test_a_number_that_is_decided_reaches_the_command_and_a_hand_does_not() -> None:
    """From demand to command. Red when the command is not told of a burst, or undoes what a person did."""
    rig = Rig(Lender([LentNode("a", 1)]))
    cluster = NumberCluster(scaler=rig.command)
    await cluster.settle(1.0)
    await cluster.tick(5.0)
    await asyncio.sleep(0)
    assert [words[-1] for words, _ in rig.program.runs] == ["3"]
    assert "3 workers are to meet the targets for 100%" in rig.program.runs[0][1]["SCALE_REASON"]
    for name in "bcd":
        cluster.there.append(f"{name}/unified-0")
        rig.lender.nodes.append(LentNode(name, 1))
    found = await cluster.tick(5.0)
    await asyncio.sleep(0)
    assert found is not None and found.verdict.value == "adopt" and cluster.number.number == 4
    assert len(rig.program.runs) == 1 and not rig.lender.drained


async def test_the_first_order_says_why() -> None:
    """Where none is there the least are ordered. Red when it is told that nothing is known, which is true and no
    reason."""
    rig = Rig(Lender())
    cluster = NumberCluster(there=[], scaler=rig.command)
    for _ in range(9):
        await cluster.tick(0.0)
        await asyncio.sleep(0)
    ((words, variables),) = rig.program.runs
    assert words[-1] == "1" and variables["SCALE_PRESENT"] == "0"
    assert variables["SCALE_REASON"] == "0 workers were found, and 1 is the least"


async def test_a_program_is_run_without_a_shell_and_without_the_settings_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a word of its arguments is read by a shell, or a `relevo join` that it starts takes the server's
    settings, or its keys, for its own."""
    monkeypatch.setenv("RELEVO_ADMIN_KEY", "secret")
    out = tmp_path / "out"
    script = f"import os, sys; open({str(out)!r}, 'w').write(repr((sys.argv[1:], dict(os.environ))))"
    status = await run_program((sys.executable, "-c", script, "$(reboot); 3"), {"SCALE_WANTED": "3"})
    told = out.read_text()
    assert status == 0 and "'$(reboot); 3'" in told and "'SCALE_WANTED': '3'" in told and "RELEVO_" not in told
    assert await run_program((sys.executable, "-c", "raise SystemExit(7)"), {}) == 7
    with pytest.raises(OSError):
        await run_program((str(tmp_path / "none"),), {})


async def test_a_program_that_is_cancelled_ends_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import subprocess, sys, os, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "time.sleep(600)\n"
    )
    running = asyncio.create_task(run_program((sys.executable, "-c", script), {}))
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not any(_lives(int(pid)) for pid in pids.read_text().split()))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_cannot_be_is_one_sentence() -> None:
    given = {"model": "fake", "cluster": "0.0.0.0:7000"}
    with pytest.raises(SettingsError, match="--scale-command /usr/bin/true needs a bound; add --max-workers N"):
        number_config(Settings(**given, scale_command="/usr/bin/true --now"))
    with pytest.raises(SettingsError, match="--scale-command no-such-program: there is no such program"):
        number_config(Settings(**given, scale_command="no-such-program --now", max_workers=2))
    with pytest.raises(SettingsError, match=r"--scale-command \S+ is a file that cannot be executed; run chmod \+x"):
        number_config(Settings(**given, scale_command=shlex.join([__file__]), max_workers=2))
    with pytest.raises(SettingsError, match=r"--scale-command .*: value error, No closing quotation"):
        make_settings({**given, "scale_command": ["scale 'it"], "max_workers": 2})
    found = number_config(make_settings({**given, "scale_command": [f"{sys.executable} 'a b'"], "max_workers": 2}))
    assert found is not None and found.command == (sys.executable, "a b") and os.access(found.command[0], os.X_OK)
