"""Gateways on one port: what they tell each other over their sockets, and what they say about all of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pytest
from in_process_stack import Gateway, in_process_stack, request_for, until
from prometheus_client.parser import text_string_to_metric_families
from scripted_gateway import CountingClock, rig

from relevo.build.configs import GatewayConfig, ServedModelConfig
from relevo.build.gateways import gateway_configs, share
from relevo.build.gossip import share_accounts
from relevo.core.errors import SettingsError
from relevo.core.events import StepCounters, WorkerLoad
from relevo.core.ids import WorkerRef
from relevo.core.request import EngineRequest
from relevo.gateway.metering.accounts import Accounts
from relevo.gateway.metering.keys import KeyRecord
from relevo.orchestrator import gossip_sockets
from relevo.orchestrator.in_flight import InFlightRequest
from relevo.orchestrator.ports import EngineStatus, WorkerStatus
from relevo.policy.admission.key_limits import Charge, KeyLimits, Refused
from relevo.policy.handoff import machine
from relevo.policy.handoff.state import HandoffLimits
from relevo.policy.worker.prefix_cache import PromptHashes, prompt_hashes
from relevo.telemetry.merged_series import SeriesFamily
from relevo.telemetry.metrics import GatewayMetrics
from relevo.wire import gossip as wire
from relevo.wire.framing import encode_frame

SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
PROMPT = list(range(20))


@pytest.fixture
def folder() -> Iterator[str]:
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="g") as path:
        yield path


def in_flight(gateway: Gateway) -> list[tuple[WorkerRef, int, int]]:
    return [
        (view.ref, view.in_flight_prefill_tokens, view.in_flight_decode_tokens) for view in gateway.placement._views()
    ]


async def hear_each_other(gateways: Sequence[Gateway]) -> None:
    """And are followed: nothing that is told from here on is missed."""
    await until(lambda: all(len(g.gossip._followers) == len(gateways) - 1 for g in gateways if g.gossip))


async def test_a_choice_is_seen_by_the_other_gateway_and_gone_when_it_is_over(folder: str) -> None:
    """Red when a burst over two gateways is balanced as if each were alone."""
    async with in_process_stack(SPLIT, gossip_folder=folder) as stack:
        first, second = stack.gateways
        await hear_each_other(stack.gateways)
        stack.workers["prefill-0"].hold()
        running = asyncio.create_task(first.tokens(request_for(0, PROMPT)))
        await until(lambda: bool(stack.workers["prefill-0"].loop.core.remote_prefills))
        await until(lambda: in_flight(second) == in_flight(first))
        assert sum(tokens for _, tokens, _ in in_flight(second)) == len(PROMPT)
        assert second.placement._index.has_expectations
        stack.workers["prefill-0"].go_on()
        await running
        await until(lambda: first.placement.is_idle and second.placement.is_idle)


async def test_what_a_dead_gateway_had_under_way_is_withdrawn(folder: str) -> None:
    async with in_process_stack(SPLIT, gossip_folder=folder) as stack:
        first, second = stack.gateways
        await hear_each_other(stack.gateways)
        stack.workers["prefill-0"].hold()
        doomed = asyncio.create_task(first.tokens(request_for(0, PROMPT)))
        await until(lambda: not second.placement.is_idle)
        await first.die()
        doomed.cancel()
        await until(lambda: second.placement.is_idle)


async def test_one_that_comes_later_hears_what_is_under_way_already(folder: str) -> None:
    """Red when a snapshot lacks something that was told before."""
    async with in_process_stack(SPLIT, num_gateways=1, gossip_folder=folder) as stack:
        stack.workers["prefill-0"].hold()
        running = asyncio.create_task(stack.gateways[0].tokens(request_for(0, PROMPT)))
        await until(lambda: bool(stack.workers["prefill-0"].loop.core.remote_prefills))
        late = await stack.add_gateway()
        await until(lambda: in_flight(late) == in_flight(stack.gateways[0]))
        assert not late.placement.is_idle
        stack.workers["prefill-0"].go_on()
        await running
        await until(lambda: late.placement.is_idle)


def in_flight_of(request: EngineRequest) -> InFlightRequest:
    """For a placement that is driven by hand."""
    handoff = machine.start(
        request.request_id,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_samples=request.sampling.n,
        limits=HandoffLimits(),
    )
    return InFlightRequest(
        request=request,
        sink=cast(Any, None),
        handoff=handoff,
        end_with=lambda *told: None,
        prompt_hashes=PromptHashes(partial(prompt_hashes, request)),
    )


async def test_a_follower_that_does_not_read_is_cut_off(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when news pile up for it without bound."""
    monkeypatch.setattr(gossip_sockets, "MAX_UNREAD_BYTES", 10_000)
    async with in_process_stack(SPLIT, num_gateways=1, gossip_folder=folder) as stack:
        gateway = stack.gateways[0]
        assert gateway.gossip is not None
        reader, writer = await _connected(f"{folder}/0")
        writer.write(encode_frame(wire.Follow()))
        await reader.readexactly(4)  # it is followed; nothing more is read
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket
        for number in range(100_000):
            gateway.placement.choose_decode(in_flight_of(request_for(number, PROMPT * 8)), ())
            await asyncio.sleep(0)
            if not gateway.gossip._followers:
                break
        assert not gateway.gossip._followers
        writer.close()


async def test_a_question_is_answered_by_those_who_are_there(folder: str) -> None:
    async with in_process_stack(SPLIT, gossip_folder=folder) as stack:
        first = stack.gateways[0]
        assert first.gossip is not None
        while (answers := await first.gossip.ask("name"))["gateway-1"] is None:
            pass
        assert answers == {"gateway-1": b"gateway-1", "gateway-2": None}
        assert await first.gossip.ask("what nobody knows") == {"gateway-1": None, "gateway-2": None}


async def test_a_key_has_one_minute_of_tokens_through_all_gateways(folder: str) -> None:
    """Red when each gateway grants the whole limit again."""
    async with in_process_stack(SPLIT, gossip_folder=folder) as stack:
        first, second = (gateway.gossip for gateway in stack.gateways)
        assert first is not None
        assert second is not None
        accounts = [accounts_of_one_key(), accounts_of_one_key()]
        for gossip, own in zip((first, second), accounts, strict=True):
            share_accounts(gossip.gossip, own, CountingClock())
        await hear_each_other(stack.gateways)
        charge = accounts[0].try_charge("k", 60, Decimal(0), 0, 0)
        assert isinstance(charge, Charge)
        await until(lambda: left(accounts[1]) == 40)
        assert isinstance(accounts[1].try_charge("k", 60, Decimal(0), 0, 0), Refused)
        accounts[0].settle("k", charge, 10, Decimal(0), 0, 0)
        await until(lambda: left(accounts[1]) == 90)
        assert left(accounts[0]) == 90


async def test_a_key_has_one_budget_through_all_gateways(folder: str) -> None:
    """Red when what runs or ended at another gateway of the server is not counted, or counted twice."""
    async with in_process_stack(SPLIT, gossip_folder=folder) as stack:
        first, second = (gateway.gossip for gateway in stack.gateways)
        assert first is not None
        assert second is not None
        own, other = accounts_of_one_key(budget=Decimal(100)), accounts_of_one_key(budget=Decimal(100))
        share_accounts(first.gossip, own, CountingClock())
        share_accounts(second.gossip, other, CountingClock())
        await hear_each_other(stack.gateways)
        charge, there = own.try_charge("k", 10, Decimal(10), 0, 0), other.try_charge("k", 10, Decimal(10), 0, 0)
        assert isinstance(charge, Charge) and isinstance(there, Charge)
        await until(lambda: committed(own) == committed(other) == 20)
        assert own.progress("k", charge, 85, Decimal(85), 0, 0) is None
        await until(lambda: committed(other) == 95)
        refused = other.progress("k", there, 16, Decimal(16), 0, 0)
        assert refused is not None and refused.limit == "budget"
        own.settle("k", charge, 85, Decimal(85), 0, 0)
        other.settle("k", there, 16, Decimal(16), 0, 0)
        await until(lambda: committed(own) == committed(other) == 101)
        other.forget_elsewhere("gateway-1")
        assert committed(other) == 101, "what has ended stays, whichever gateway told of it"
        for accounts in (own, other):
            questions = accounts.questions(100_000, None, only_new=False)
            accounts.correct(questions, [Decimal(101)], 100_000)
            assert committed(accounts) == 101, "once in the ledger, rows are not counted again"


def committed(accounts: Accounts) -> Decimal:
    return accounts._by_key["k"].account.committed


def accounts_of_one_key(**limits: Any) -> Accounts:
    accounts = Accounts()
    record = KeyRecord(
        **{
            **dict.fromkeys((field.name for field in fields(KeyRecord)), None),
            "key_id": "k",
            "limits": KeyLimits(**(limits or {"tokens_per_minute": 100})),
        }  # type: ignore[arg-type]  # what accounts read of it
    )
    accounts.load([record], 0, 0)
    return accounts


def left(accounts: Accounts) -> int:
    rate = accounts.rate("k", 0)
    assert rate is not None
    return rate.remaining_tokens


async def _connected(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(0)


# ---- one answer about all ------------------------------------------------------------------------------------------


def status(num_steps: int) -> dict[str, EngineStatus]:
    worker = WorkerStatus(
        worker_id="w0",
        role="unified",
        ready=True,
        epoch=1,
        pid=1,
        load=WorkerLoad(num_running=num_steps),
        counters=StepCounters(num_steps=num_steps),
    )
    return {"tiny": EngineStatus(ready=True, reason="", num_in_flight=3, workers=(worker,))}


def test_a_scrape_shows_every_gateway_and_each_worker_once() -> None:
    """Red when series of two gateways fall together, or when a worker's counter falls because another gateway, which
    was restarted, was asked."""
    metrics = {f"gateway-{i}": GatewayMetrics(["tiny"]) for i in range(2)}
    for number, each in enumerate(metrics.values()):
        for _ in range(number + 1):
            each.http_response("/v1/models", "GET", 200)
    others: dict[str, Sequence[SeriesFamily] | None] = {
        "gateway-0": metrics["gateway-0"].scrape(status(num_steps=9)),
        "gateway-2": None,
    }
    text, _ = metrics["gateway-1"].render_merged(status(num_steps=4), "gateway-1", others)
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }
    responses = {dict(labels)["gateway"]: v for (name, labels), v in samples.items() if name == "http_requests_total"}
    assert responses == {"gateway-0": 1, "gateway-1": 2}
    steps = [(dict(labels), v) for (name, labels), v in samples.items() if name == "relevo:steps_total"]
    assert steps == [({"model_name": "tiny", "role": "unified", "worker": "w0"}, 9)]
    running = [v for (name, _), v in samples.items() if name == "vllm:num_requests_running"]
    assert running == [4]
    assert [v for (name, _), v in samples.items() if name == "relevo:requests_in_flight"] == [3, 3]
    up = {dict(labels)["gateway"]: v for (name, labels), v in samples.items() if name == "relevo:gateway_up"}
    assert up == {"gateway-0": 1, "gateway-1": 1, "gateway-2": 0}


class TwoOthers:
    """One that sees the worker in its former incarnation, and one that does not answer."""

    gateway_id = "gateway-0"

    async def metrics(self) -> dict[str, Sequence[SeriesFamily] | None]:
        return {"gateway-1": None, "gateway-2": None}

    async def readiness(self) -> dict[str, dict[str, Any] | None]:
        own = {"model": "tiny", "worker_id": "w0", "ready": False, "epoch": 0}
        said = {"ready": False, "reason": "w0: starting", "models": {"tiny": {"ready": False}}, "workers": [own]}
        return {"gateway-1": said, "gateway-2": None}


async def test_ready_is_what_every_gateway_that_answers_says() -> None:
    """`relevo drain` goes on to the next worker when /ready says that this one is back: red when one gateway's word is
    enough."""
    with_others = rig(others=TwoOthers())
    for path in ("/ready", "/ready?model=tiny"):
        response = await with_others.get(path)
        said = response.json()
        assert response.status_code == 503
        assert said["reason"] == "gateway-1: w0: starting"
        assert [(w["worker_id"], w["ready"], w["epoch"]) for w in said["workers"]] == [("w0", False, 0)]
        assert said["gateways"] == [
            {"gateway_id": "gateway-0", "answers": True, "ready": True},
            {"gateway_id": "gateway-1", "answers": True, "ready": False},
            {"gateway_id": "gateway-2", "answers": False, "ready": False},
        ]


# ---- what each is told ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "count"), [(0, 3), (7, 3), (256, 2), (3, 3)])
def test_shares_add_up(total: int, count: int) -> None:
    shares = [share(total, index, count) for index in range(count)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def gateway_config(**bounds: Any) -> GatewayConfig:
    model: Any = dict.fromkeys(ServedModelConfig.__struct_fields__, 0)
    model |= {"max_num_queued_reqs": 9, "planner": "off"} | bounds
    rest: Any = dict.fromkeys(GatewayConfig.__struct_fields__, 0)
    return GatewayConfig(**rest | {"models": (ServedModelConfig(**model),)})


def test_bounds_are_divided_and_everybody_knows_the_others() -> None:
    configs = gateway_configs(gateway_config(max_num_queued_tokens=1000), 3, "/run")
    assert sum(config.models[0].max_num_queued_reqs for config in configs) == 9
    assert sum(config.models[0].max_num_queued_tokens for config in configs) == 1000
    for config in configs:
        paths = {peer.gateway_id: peer.path for peer in config.peers} | {config.gateway_id: config.gossip_path}
        assert paths == {f"gateway-{i}": f"/run/gateway-{i}.sock" for i in range(3)}
        assert len(config.peers) == 2


def test_a_bound_too_small_to_divide_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="--max-num-queued-reqs 2 cannot be divided among --gateways 3"):
        gateway_configs(gateway_config(max_num_queued_reqs=2), 3, "/run")


def test_every_gateway_has_a_planner_of_which_one_acts() -> None:
    configs = gateway_configs(gateway_config(planner="on"), 3, "/run")
    assert [config.models[0].planner for config in configs] == ["on"] * 3


def test_one_gateway_is_told_nothing_of_others() -> None:
    assert gateway_configs(gateway_config(), 1, "/run") == (gateway_config(),)
