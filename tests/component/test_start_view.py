"""What `relevo serve` and `relevo join` say while they start: `ready` promises every door, the cluster's included."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from relevo.build.serve import plan_serving
from relevo.build.start_phases import StartPhases
from relevo.cli.run_server import StartView
from relevo.settings import Settings
from relevo.telemetry import log
from relevo.wire.status import Status

URL = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True)
def lines_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command that ran in this process before has configured."""
    monkeypatch.setattr(log, "_sink", None)


def view_of(num_gateways: int, *, has_node: bool) -> StartView:
    return StartView(plan_serving(Settings(model="fake")), URL, StartPhases(), num_gateways, has_node=has_node)


@pytest.mark.parametrize(("num_gateways", "doors"), [(1, ["gateway", "node"]), (2, ["gateway-0", "gateway-1", "node"])])
def test_a_head_is_ready_when_gateways_and_the_clusters_door_are(
    num_gateways: int, doors: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Red when it says ready before other boxes can join, in whatever order its processes get there."""
    for order in itertools.permutations(doors):
        view = view_of(num_gateways, has_node=True)
        for number, name in enumerate(order):
            assert "ready:" not in capsys.readouterr().err, order[:number]
            view.on_status(name, Status(kind="ready"))
        assert capsys.readouterr().err == f"ready: {URL}/v1  (Ctrl-C stops)\n"


def test_without_a_cluster_no_node_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    view = view_of(1, has_node=False)
    view.on_status("gateway", Status(kind="ready"))
    assert "ready:" in capsys.readouterr().err
