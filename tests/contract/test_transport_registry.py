"""A transport is a file and a line: what the developers' page adds can be asked for and planned like those that are
here. That it keeps the contract is in test_transport_contract.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from guide_transport import GUIDE

from relevo.build.plan import ServePlan
from relevo.build.serve import plan_serving
from relevo.core.errors import SettingsError
from relevo.core.ids import WorkerId, WorkerRef
from relevo.engine.fake_runner import fake_layout
from relevo.kv.arena import Arena
from relevo.kv.transports.registry import TRANSPORTS, OwnEnd
from relevo.settings import Settings

FOLDER = Path(__file__).parents[2] / "src" / "relevo" / "kv" / "transports"


def plan(kv_transport: str) -> ServePlan:
    asked = {"topology": "1p1d", "cores": ("0",), "share_cores": True, "num_kv_blocks": 8, "database_url": "memory"}
    return plan_serving(Settings(kv_transport=kv_transport, **asked))


def test_what_the_registry_says_beforehand_is_what_is_opened() -> None:
    """Red when an entry's name or reach is not its transport's: pairs would be joined by what they do not have."""
    for name, kind in TRANSPORTS.items():
        arena = Arena.create(fake_layout(4), 2, shared=False)
        worker = WorkerRef(WorkerId("w"), 1)
        transport = kind.open(OwnEnd(worker=worker, arena=arena, secret=b"s" * 32, on_wake=lambda: None))
        assert (transport.name, transport.reach) == (name, kind.reach)
        transport.close()


def test_a_transport_of_the_guide_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="--kv-transport heap must name one or more of shm, tcp"):
        plan("heap")
    monkeypatch.setitem(TRANSPORTS, "heap", GUIDE)
    (model,) = plan("heap").models
    assert [worker.transports for worker in model.workers] == [("heap",)] * 2
    assert not model.is_arena_shared


def test_workers_share_memory_if_one_of_their_transports_wants_it() -> None:
    """Red when the name and not the reach decides, or only the first name."""
    for asked, shared in (("shm", True), ("tcp", False), ("tcp,shm", True), ("shm,shm", True)):
        (model,) = plan(asked).models
        assert model.is_arena_shared == shared
        assert model.workers[0].transports == tuple(dict.fromkeys(asked.split(",")))
    with pytest.raises(SettingsError, match="must name one or more"):
        plan(",")


def test_only_the_registry_names_a_transport() -> None:
    """Red when code asks "is it shm" again: whether memory is shared is a fact of a pair. `bench transport` measures
    two by name; `collectives` are the ways between ranks of one worker, which have names of their own."""
    sources = [
        path for path in FOLDER.parents[1].rglob("*.py") if FOLDER not in path.parents and "bench" not in path.parts
    ]
    found = [
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(f'"{name}"' in line for name in ("shm", "tcp")) and "Field" not in line and "collectives" not in line
    ]
    assert found == ['settings.py: ("shm",),']
