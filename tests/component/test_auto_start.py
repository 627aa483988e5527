"""How `--topology auto` begins: by the cores, or in the mode that was best for a history; and what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_process_stack import in_process_stack, request_for, until
from test_memory_plan import GIB, plan
from test_planner_loop import SLO, Deaf, has_roles, planning_of, record

from relevo.build.clock import MonotonicClock
from relevo.build.configs import HistoryConfig
from relevo.build.ledger import open_prepared
from relevo.build.role_planner import planned
from relevo.build.start_history import with_histories
from relevo.core.errors import SettingsError
from relevo.gateway.metering.ledger import LedgerRow, put_rows
from relevo.orchestrator.ports import WorkerStatus
from relevo.planner.loop import History
from relevo.planner.not_simulated import NotSimulated
from relevo.planner.window import DemandWindow
from relevo.policy.host.auto_mode import AUTO_ITL_S
from relevo.policy.scaling.demand import Demand, Sample
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.role_planner import PlanVerdict

DEMAND = Demand(requests_per_s=2.0, samples=(Sample(900, 20),), longest_tokens=920)
HISTORY = History("yesterday", DEMAND)


async def test_it_starts_in_the_mode_that_was_best_and_says_later_what_came_of_it() -> None:
    """Red when workers are waited for in vain, another demand is asked about, or what came of it is never told."""
    asked: list[Demand] = []
    async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
        dispatcher = stack.gateways[0].dispatcher
        planning = planning_of(DemandWindow(dispatcher, MonotonicClock(), SLO), is_dry=False)
        answer = planning.ask

        async def ask(modes: Sequence[Mode], demand: Demand, workers: Sequence[WorkerStatus]) -> Mapping[Mode, Any]:
            asked.append(demand)
            return await answer(modes, demand, workers)

        planning.ask, planning.history, planning.only_begins = ask, HISTORY, True
        await asyncio.wait_for(planning.run(), 10.0)
        await until(partial(has_roles, dispatcher, ["standby", "unified"]))
        (told,) = planning.plan()["decisions"]
        assert asked == [DEMAND] and (told["verdict"], told["mode"]) == ("start", "unified")
        assert told["reason"].startswith("by yesterday, 2.00 requests/s: unified is to meet the targets for 100%")
        assert told["expected"]["attained"] == 1.0 and planning.planner.num_changes == 0
        clock = MonotonicClock()
        change = planning.planner._change
        assert change is not None
        change.at_s = clock.now_ns() / 1e9 - 100.0
        planning.window._since_ns = clock.now_ns() - 50 * 10**9
        for number in range(20):
            planning.window.start(request_for(number, [number] * 5, 2), Deaf())
            planning.window.finished(record(number, 5, 2, 0.1))
        decision = await planning.tick()
        assert decision.verdict is PlanVerdict.KEEP and "came to 100% that meet the targets, of 100%" in decision.reason


async def test_a_mode_that_is_as_good_is_kept_and_no_answer_leaves_it() -> None:
    async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
        dispatcher = stack.gateways[0].dispatcher
        planning = planning_of(DemandWindow(dispatcher, MonotonicClock(), SLO), is_dry=False)

        async def alike(modes: Sequence[Mode], demand: Demand, workers: Any) -> Mapping[Mode, ModeOutlook]:
            return {mode: ModeOutlook(attained=1.0, ttft_p90_s=0.1, itl_p90_s=0.01) for mode in modes}

        async def ended(*asked: object) -> Mapping[Mode, ModeOutlook]:
            raise NotSimulated("the process of the simulator ended")

        for ask in (alike, ended):
            planning.ask, planning.history, planning.only_begins = ask, HISTORY, True
            await asyncio.wait_for(planning.run(), 10.0)
            assert has_roles(dispatcher, ["prefill", "decode"])
        assert [told["mode"] for told in planning.plan()["decisions"]] == ["1p1d"]


async def test_a_dry_run_says_the_mode_and_gives_no_role() -> None:
    async with in_process_stack({"prefill-0": "prefill", "decode-0": "decode"}, num_gateways=1) as stack:
        dispatcher = stack.gateways[0].dispatcher
        planning = planning_of(DemandWindow(dispatcher, MonotonicClock(), SLO), is_dry=True)
        planning.history, planning.only_begins = HISTORY, True
        await asyncio.wait_for(planning.run(), 10.0)
        assert has_roles(dispatcher, ["prefill", "decode"]) and planning.plan()["decisions"][0]["mode"] == "unified"


def test_auto_plans_and_bounds_gaps_and_what_is_written_does_as_it_is_told() -> None:
    """Red when the default never follows the traffic, or a topology that was written is changed."""
    chosen, written = plan(GIB, topology="auto").models[0], plan(GIB, topology="unified").models[0]
    assert (chosen.served.planner, written.served.planner) == ("on", "off")
    assert {worker.itl_target_s for worker in chosen.workers} == {AUTO_ITL_S} == {chosen.served.slo_itl_s}
    assert {worker.itl_target_s for worker in written.workers} == {0.0}
    assert plan(GIB, topology="auto", slo_itl_p90=0.02).models[0].workers[0].itl_target_s == 0.02
    assert plan(GIB, topology="auto", gateways=2).models[0].served.planner == "off", "each sees a part"
    assert plan(GIB, topology="auto", num_cores=1).models[0].served.planner == "off", "there is nothing to choose"
    assert [worker.role for worker in plan(GIB, topology="hybrid").models[0].workers] == ["hybrid", "hybrid"]


def test_a_history_needs_auto_and_one_gateway() -> None:
    with pytest.raises(SettingsError, match="--auto-from ledger chooses how --topology auto starts, and --topology is"):
        plan(GIB, topology="1p1d", auto_from="ledger")
    with pytest.raises(SettingsError, match="needs one gateway, which gives the roles, and --gateways is 2"):
        plan(GIB, topology="auto", auto_from="ledger", gateways=2)


def history_of(tmp_path: Path, **asked: Any) -> tuple[HistoryConfig | None, tuple[str, ...]]:
    planned_ = plan(GIB, topology="auto", data_dir=str(tmp_path), served_model_name=("m",), **asked)
    found = with_histories(planned_, planned_.models[0].ask.settings)
    assert found.gateway.models[0] == found.models[0].served
    assert msgspec.json.decode(msgspec.json.encode(found.gateway), type=type(found.gateway)) == found.gateway
    return found.models[0].served.history, found.notes


def test_the_ledgers_busiest_hour_is_a_history_and_a_first_start_has_none(tmp_path: Path) -> None:
    """Red when a new server does not start because nothing was asked of it so far."""
    found, notes = history_of(tmp_path, auto_from="ledger")
    assert found is None
    assert notes[-1] == (
        "auto: the ledger has no request of m of the last 7 days; it starts as hybrid and learns from what comes"
    )
    now_ms = int(time.time() * 1e3)
    connection = open_prepared(str(tmp_path / "relevo.db"))
    connection.write([put_rows(_row(index, now_ms - 7_200_000 + 500 * index) for index in range(200))])
    connection.close()
    found, notes = history_of(tmp_path, auto_from="ledger")
    assert found is not None and found.requests_per_s == pytest.approx(2.0, rel=0.02)
    assert (
        set(found.samples) == {(100, 10, 64)} and found.longest_tokens == 110 and "200 requests, ledger" in found.source
    )
    with pytest.raises(SettingsError, match="--database-url memory keeps nothing; name a trace"):
        history_of(tmp_path, auto_from="ledger", database_url="memory")


def test_a_traces_history_counts_the_hits_of_this_servers_cache(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]}
    path.write_text("".join(json.dumps({"timestamp": 500 * i, **row}) + "\n" for i in range(40)))
    found, _ = history_of(tmp_path, auto_from=str(path))
    assert found is not None and found.source == "trace.jsonl (40 requests)"
    assert found.requests_per_s == pytest.approx(2.0, rel=0.05) and max(each[2] for each in found.samples) == 1099
    path.write_text(json.dumps({"timestamp": 0, **row, "input_length": 100_000}) + "\n")
    with pytest.raises(SettingsError, match="0 of its 1 requests fit --max-model-len"):
        history_of(tmp_path, auto_from=str(path))
    with pytest.raises(SettingsError, match="cannot read the trace"):
        history_of(tmp_path, auto_from=str(tmp_path / "none"))


def test_without_a_planner_it_begins_and_does_no_more() -> None:
    served = plan(GIB, topology="auto", planner="off").models[0].served
    assert planned(served, None) is None  # type: ignore[arg-type]
    history = HistoryConfig(source="s", requests_per_s=1.0, samples=((1, 2, 0),), longest_tokens=3)
    planning = planned(msgspec.structs.replace(served, history=history), None)  # type: ignore[arg-type]
    assert planning is not None and planning.only_begins and planning.history is not None
    assert planning.history.demand.samples == (Sample(1, 2, (0,)),)
    planning.close()


def _row(index: int, started_at_ms: int) -> LedgerRow:
    return LedgerRow(
        request_id=f"r{index}",
        response_id=f"c{index}",
        key_id="",
        tenant="",
        model="m",
        outcome="finished",
        prompt_tokens=100,
        cached_tokens=64,
        completion_tokens=10,
        unbilled_prompt_tokens=0,
        unbilled_completion_tokens=0,
        input_cost_per_token="0",
        cache_read_input_token_cost="0",
        output_cost_per_token="0",
        cost="0",
        started_at_ms=started_at_ms,
        ended_at_ms=started_at_ms + 100,
    )
