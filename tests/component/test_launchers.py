"""Supervisors that a launcher places: they are started again, end with who keeps them, and follow their head.

Red when a supervisor outlives its keeper (two writers of one name), when what a person has to mend is tried for ever,
when a head that is silent is taken for another one, and when Ray is left with what was placed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_ray import ScriptedRay
from typer.testing import CliRunner

from relevo.cli import ray as ray_cli
from relevo.cluster.launchers import keepers
from relevo.cluster.launchers.keeper import Keeper
from relevo.cluster.launchers.keepers import HeadKeeper, NodeKeeper
from relevo.cluster.launchers.local import LocalLauncher
from relevo.cluster.launchers.ray import RayLauncher
from relevo.cluster.launchers.seats import HeadPlace, HeadSeat, Invitation, Launcher, NodeSeat, Room, head_command
from relevo.core.errors import SettingsError

SLEEP = ["sleep", "600"]


def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline_s, "it has not come true"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def keeping() -> Iterator[Callable[..., Keeper]]:
    made: list[Keeper] = []

    def keep(script: str) -> Keeper:
        made.append(Keeper("decode-0", "10.0.0.1", lambda: ["sh", "-c", script], drain_s=0.0))
        return made[-1]

    yield keep
    for each in made:
        each.end()


# ---- a keeper --------------------------------------------------------------------------------------------------------


def test_what_dies_is_started_again(keeping: Callable[..., Keeper]) -> None:
    keeper = keeping("exec sleep 600")
    until(lambda: keeper.state().pid)
    first = keeper.state().pid
    os.kill(first, signal.SIGKILL)
    until(lambda: keeper.state().pid not in (0, first))
    assert keeper.state().num_starts == 2 and keeper.state().state == "running"


def test_what_a_person_has_to_mend_is_said_and_not_tried_again(keeping: Callable[..., Keeper]) -> None:
    keeper = keeping("echo loading; echo 'relevo: the model is another one' >&2; exit 2")
    until(lambda: keeper.state().state == "failed")
    assert (keeper.state().reason, keeper.state().num_starts) == ("the model is another one", 1)


def test_a_node_that_was_drained_for_good_stays_away(keeping: Callable[..., Keeper]) -> None:
    keeper = keeping("exit 0")
    until(lambda: keeper.state().state == "ended")
    assert keeper.state().num_starts == 1


def test_what_may_work_later_is_tried_again(keeping: Callable[..., Keeper], tmp_path: Path) -> None:
    keeper = keeping(f"test -e {tmp_path}/there && exec sleep 600; touch {tmp_path}/there; exit 75")
    until(lambda: keeper.state().num_starts == 2 and keeper.state().pid)
    until(lambda: keeper.state().state == "running")


def test_it_drains_when_it_is_ended(keeping: Callable[..., Keeper], tmp_path: Path) -> None:
    keeper = keeping(f"trap 'touch {tmp_path}/drained; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done")
    until((tmp_path / "up").exists)
    keeper.end()
    assert (tmp_path / "drained").exists() and keeper.state().state == "ended"


def test_a_supervisor_ends_with_the_process_that_keeps_it(tmp_path: Path) -> None:
    """kill -9, as Ray ends an actor. Two of one name would write side by side."""
    program = f"""
import pathlib, time
from relevo.cluster.launchers.keeper import Keeper
keeper = Keeper("n", "h", lambda: ["sleep", "600"], drain_s=0.0)
while not keeper.state().pid: time.sleep(0.01)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(keeper.state().pid))
time.sleep(600)
"""
    actor = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        child = int((tmp_path / "pid").read_text())
        assert is_alive(child)
    finally:
        actor.kill()
        actor.wait()
    until(lambda: not is_alive(child))


# ---- nodes and their head --------------------------------------------------------------------------------------------


class Head:
    """Answers or not, here or elsewhere."""

    def __init__(self) -> None:
        self.where: HeadPlace | None = HeadPlace("10.0.0.1:7000", "aa")
        self.invited: list[str] = []

    def invite(self, name: str) -> Invitation | None:
        if self.where is None:
            return None
        self.invited.append(name)
        return Invitation(self.where, f"token {len(self.invited)}")

    def place(self) -> HeadPlace | None:
        return self.where


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Head, NodeKeeper, list[str]]]:
    """A node that runs something else than `relevo join`, and the addresses that it was started for."""
    monkeypatch.setattr(keepers, "_ASK_EVERY_S", 0.0)
    addresses: list[str] = []

    def command(seat: NodeSeat, host: str, address: str, folder: Path) -> list[str]:
        assert (folder / "join-token").stat().st_mode & 0o077 == 0
        addresses.append(f"{address} {(folder / 'join-token').read_text()}")
        return SLEEP

    monkeypatch.setattr(keepers, "node_command", command)
    head = Head()
    node = NodeKeeper(NodeSeat(name="decode-0", role="decode", drain_s=0.0), "10.0.0.2", head)
    until(lambda: node.state().pid)
    yield head, node, addresses
    node.end()


def test_a_supervisor_that_is_started_again_keeps_who_it_is(joined: tuple[Head, NodeKeeper, list[str]]) -> None:
    head, node, addresses = joined
    os.kill(node.state().pid, signal.SIGKILL)
    until(lambda: node.state().num_starts == 2)
    assert head.invited == ["decode-0"] and addresses == ["10.0.0.1:7000 token 1"] * 2


def test_a_head_that_is_silent_is_no_other_head(joined: tuple[Head, NodeKeeper, list[str]]) -> None:
    head, node, addresses = joined
    head.where = None
    pid = node.state().pid
    time.sleep(0.6)  # it has asked a few times
    assert node.state().pid == pid and len(addresses) == 1


@pytest.mark.parametrize("where", [HeadPlace("10.0.0.9:7000", "aa"), HeadPlace("10.0.0.1:7000", "bb")])
def test_nodes_join_anew_when_the_head_is_another(joined: tuple[Head, NodeKeeper, list[str]], where: HeadPlace) -> None:
    head, node, addresses = joined
    head.where = where
    until(lambda: len(addresses) == 2 and node.state().pid)
    assert addresses[1] == f"{where.address} token 2"


def test_a_head_keeps_its_authority_and_invites_one_name_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "head_command", lambda seat, host: SLEEP)
    seat = HeadSeat(model="fake", folder=str(tmp_path / "cluster"), drain_s=0.0)
    first = HeadKeeper(seat, "10.0.0.1")
    invitations = [first.invite("decode-0"), first.invite("decode-0")]
    first.end()
    second = HeadKeeper(seat, "10.0.0.1")
    second.end()
    assert second.place() == first.place() and first.place().address == "10.0.0.1:7000"
    assert invitations[0].token != invitations[1].token and invitations[0].token not in repr(invitations[0])


def test_the_head_has_no_workers_of_its_own_and_its_flags() -> None:
    command = head_command(HeadSeat(model="m", folder="/f", flags=("--require-keys",)), "fd00::1")
    assert command[command.index("serve") + 1] == "m" and "--require-keys" in command
    assert command[command.index("--cluster") + 1] == "[fd00::1]:7000"
    assert command[command.index("--topology") + 1] == "none"


# ---- launchers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "head_command", lambda seat, host: SLEEP)
    monkeypatch.setattr(keepers, "node_command", lambda seat, host, address, folder: SLEEP)


def seats(*names: str, **room: float) -> list[tuple[NodeSeat, Room]]:
    return [(NodeSeat(name=name, role="decode", drain_s=0.0), Room(**room)) for name in names]


@pytest.fixture(params=["local", "ray"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    if request.param == "local":
        return LocalLauncher()
    ScriptedRay(machines=[{"CPU": 4.0}, {"CPU": 4.0}]).install(monkeypatch)
    return RayLauncher(address="auto", name="relevo")


def test_all_seats_run_and_none_is_left(launcher: Launcher, sleeping: None, tmp_path: Path) -> None:
    launcher.launch(HeadSeat(model="fake", folder=str(tmp_path / "c"), drain_s=0.0), seats("decode-0", "decode-1"))
    try:
        until(lambda: [each.state for each in launcher.states()] == ["running"] * 3)
        states = launcher.states()
        assert [each.name for each in states] == ["head", "decode-0", "decode-1"]
        assert launcher.url() == "http://127.0.0.1:8000"
    finally:
        launcher.end()
    until(lambda: not any(is_alive(each.pid) for each in states))


def test_ray_is_asked_for_a_machine_each_and_keeps_nothing(
    sleeping: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = ScriptedRay(machines=[{"CPU": 8.0, "fast": 1.0, "GPU": 2.0}, {"CPU": 8.0, "fast": 1.0, "GPU": 2.0}])
    ray.install(monkeypatch)
    launcher = RayLauncher(address="auto", name="llm", is_detached=True)
    nodes = [(seat, Room(num_cpus=4.0, num_gpus=2.0, resources={"fast": 1.0})) for seat, _ in seats("p-0", "d-0")]
    launcher.launch(HeadSeat(model="fake", folder=str(tmp_path / "c"), drain_s=0.0), nodes)
    bundle = {"CPU": 4.0, "GPU": 2.0, "fast": 1.0}
    assert ray.groups["llm"].bundles == [bundle | {"CPU": 5.0}, bundle], "the head shares the first one's machine"
    for handle in ray.actors.values():
        assert handle.options["max_restarts"] == -1 and handle.options["lifetime"] == "detached"
    with pytest.raises(SettingsError, match="llm is up on this Ray cluster"):
        RayLauncher(address="auto", name="llm").launch(HeadSeat(model="m", folder="/f"), nodes)
    other = RayLauncher(address="auto", name="llm")  # as `relevo ray down` is another process
    assert other.is_up
    other.end()
    assert ray.actors == {} and ray.groups == {} and not other.is_up


def test_an_actor_that_does_not_answer_is_told_and_its_node_left_alone(
    sleeping: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = ScriptedRay(machines=[{"CPU": 4.0}, {"CPU": 4.0}])
    ray.install(monkeypatch)
    launcher = RayLauncher(address="auto", name="relevo")
    launcher.launch(HeadSeat(model="fake", folder=str(tmp_path / "c"), drain_s=0.0), seats("decode-0", "decode-1"))
    try:
        until(lambda: all(each.pid for each in launcher.states()))
        before = {each.name: each.pid for each in launcher.states()}
        ray.actors["decode-1"].is_cut_off = True
        assert [(s.name, s.reason) for s in launcher.states() if s.state == "waiting"] == [
            ("decode-1", "state did not answer")
        ]
        ray.actors["decode-1"].is_cut_off = False
        assert {each.name: each.pid for each in launcher.states()} == before
    finally:
        launcher.end()


def test_ray_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'relevo\[ray\]'"):
        RayLauncher(address="auto", name="relevo")


def test_a_cluster_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    ScriptedRay(machines=[], is_reachable=False).install(monkeypatch)
    with pytest.raises(SettingsError, match=r"no Ray cluster answers at auto .*ray start --head"):
        RayLauncher(address="auto", name="relevo")


@pytest.mark.parametrize(
    ("machines", "room", "words"),
    [
        ([{"CPU": 4.0}], {}, r"2 nodes are asked for.* this Ray cluster has 1; add machines"),
        ([{"CPU": 1.0}, {"CPU": 1.0}], {}, r"no place .*asked is CPU 2; CPU 1, its machines have 10\.0\.0\.0: CPU 1"),
        ([{"CPU": 4.0}, {"CPU": 4.0}], {"num_gpus": 1.0}, r"asked is CPU 2, GPU 1; CPU 1, GPU 1"),
    ],
)  # fmt: skip
def test_too_small_a_cluster_is_said_with_both_numbers(
    machines: list[dict[str, float]], room: dict[str, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = ScriptedRay(machines=machines)
    ray.install(monkeypatch)
    with pytest.raises(SettingsError, match=words):
        RayLauncher(address="auto", name="relevo", place_s=0.1).launch(
            HeadSeat(model="fake", folder="/nowhere"), seats("decode-0", "decode-1", **room)
        )
    assert ray.actors == {} and ray.groups == {}


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "up"])
def test_the_commands_have_the_options(command: str) -> None:
    shown = CliRunner().invoke(ray_cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
    for word in ("MODEL", "--prefill", "--set", "--gateway-setting", "--resource", "--strategy", "--address"):
        assert word in shown


def test_the_command_says_what_is_wrong() -> None:
    ended = CliRunner().invoke(ray_cli.app, ["serve", "fake", "--set", "cores=0"])
    assert isinstance(ended.exception, SettingsError) and "no node would compute" in ended.exception.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no node would compute"),
        ({"nodes": 1, "strategy": "spread"}, "--strategy spread is none of Ray's"),
        ({"nodes": 1, "port": 7001}, "have to differ"),
        ({"nodes": 1, "resource": ["fast=1"]}, "ROLE:NAME=AMOUNT"),
        ({"nodes": 1, "resource": ["prefill:fast=much"]}, "ROLE:NAME=AMOUNT"),
        ({"nodes": 1, "gateway_setting": ["require_keys"]}, "is not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ray_cli.asked("fake", **options)  # type: ignore[arg-type]


def test_options_become_seats() -> None:
    of = ray_cli.asked(
        "fake",
        prefill=1,
        decode=2,
        resource=["decode:big=0.5"],
        gateway_setting=["require_keys=true", "max_model_len=8k"],
        node_setting=["cores=0"],
    )
    assert [(seat.name, room.resources) for seat, room in of.nodes] == [
        ("prefill-0", {}),
        ("decode-0", {"big": 0.5}),
        ("decode-1", {"big": 0.5}),
    ]
    assert of.head.flags == ("--require-keys", "--max-model-len=8k")
    assert all(seat.settings == ("cores=0",) and seat.control_port == 7001 for seat, _ in of.nodes)
