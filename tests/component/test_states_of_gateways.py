"""One state of several gateways: what adds up, what does not, and which of them answered."""

from __future__ import annotations

from typing import Any

import msgspec
from test_state_contents import COUNTERS, D0, P0, Server, status, worker

from relevo.core.baton import SampledToken
from relevo.core.decisions import Decision
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId
from relevo.gateway.console.gather import Report, gather
from relevo.gateway.console.intervals import NUM_LAST_MINUTE
from relevo.gateway.console.reading import STATE, STATE_WITH_HISTORY, read_state, report_for_others
from relevo.gateway.console.state import State
from relevo.gateway.http.context import GatewayContext
from relevo.orchestrator.insight import LastOutput
from relevo.policy.admission.words import TenantCount


class Others:
    """Implements gateway.http.context.OtherGateways, as far as the state asks."""

    gateway_id = "gateway-0"

    def __init__(self, **contexts: GatewayContext | None) -> None:
        self.contexts = contexts
        self.asked: list[str] = []

    async def states(self, question: str) -> dict[str, bytes | None]:
        self.asked.append(question)
        return {
            name.replace("_", "-"): None if context is None else report_for_others(context, question)
            for name, context in self.contexts.items()
        }


def context_of(server: Server, gateway_id: str, others: Others | None = None) -> GatewayContext:
    app: Any = server.app
    parts = {name: getattr(app.context, name) for name in GatewayContext.__dataclass_fields__}
    return GatewayContext(**(parts | {"gateway_id": gateway_id, "others": others}))


def two(**more: None) -> tuple[Server, Server, GatewayContext, Others]:
    first, second = Server(), Server()
    others = Others(gateway_1=context_of(second, "gateway-1"), **more)
    return first, second, context_of(first, "gateway-0", others), others


async def test_what_gateways_counted_adds_up_and_what_workers_say_does_not() -> None:
    """Red if tokens of workers are counted once per gateway, or requests of one gateway are missing."""
    first, second, context, _ = two()
    for server, num_waiting in ((first, 2), (second, 3)):
        await server.complete()
        server.insight.tenants = lambda num_waiting=num_waiting: [TenantCount("a", num_waiting, 0, 1)]
        server.insight.decisions(Decision.READY, worker="p0", epoch=1)
    state = await read_state(context)
    assert [(each.gateway_id, each.answers) for each in state.gateways] == [("gateway-0", True), ("gateway-1", True)]
    assert state.models[0].totals.num_requests == {"stop": 2}
    assert (state.models[0].num_queued, state.requests.num_in_flight) == (8, 18)
    assert state.latency[0].ttft.num_samples == 2
    assert [(line.tenant, line.num_waiting, line.num_sent) for line in state.tenants] == [("a", 5, 2)]
    assert [(line.class_name, line.num_waiting, line.oldest_wait_s) for line in state.lines] == [
        ("interactive", 8, 1.5)
    ]
    assert state.workers[0].totals.num_prefill_tokens == COUNTERS.num_prefill_tokens
    assert {each.gateway_id for each in state.decisions} == {"gateway-0", "gateway-1"}


async def test_a_gateway_that_does_not_answer_is_named_and_the_rest_is_told() -> None:
    """Red if one dead gateway takes the state of the others with it."""
    _, _, context, _ = two(gateway_2=None)
    state = await read_state(context)
    silent = [each.gateway_id for each in state.gateways if not each.answers]
    assert silent == ["gateway-2"] and len(state.gateways) == 3
    assert state.models and state.workers


async def test_a_worker_is_ready_when_every_gateway_may_send_to_it() -> None:
    """Red if the gateway that was asked speaks for all, as /ready does not let it."""
    _, second, context, _ = two()
    not_yet = worker(D0, "decode", ready=False, why_not_ready="waiting for the other workers")
    second.generator.engine_status = status(worker(P0, "prefill"), not_yet)
    state = await read_state(context)
    assert [(each.is_ready, each.why_not_ready) for each in state.workers] == [
        (True, ""),
        (False, "waiting for the other workers"),
    ]


async def test_gaps_and_flows_of_both_are_there() -> None:
    first, second, context, _ = two()
    await read_state(context)
    for server in (first, second):
        server.now_s += 5.0
        last = LastOutput()
        for number in range(5):
            output = TokenOutput(RequestId("r"), 0, (SampledToken(1),))
            server.insight.gave(last, D0, output, 20_000_000 * number + 1)
    state = await read_state(context)
    assert state.workers[1].itl.num_samples == 8
    assert {(flow.source, flow.target) for flow in state.flows} == {("d0", "gateway-0"), ("d0", "gateway-1")}


async def test_ten_minutes_are_asked_for_when_they_are_told_and_one_otherwise() -> None:
    """Red if every second brings every interval of every gateway over the sockets."""
    first, second, context, others = two()
    state = await read_state(context)
    assert others.asked == [STATE_WITH_HISTORY] and state.history is not None
    number = state.history.at_unix_s[-1] // state.history.interval_s + 1
    assert (await read_state(context, history_after=number)).history is None
    assert others.asked[-1] == STATE
    for _ in range(30):
        first.now_s += 5.0
        second.now_s += 5.0
        second.insight.latency.wrote_first(1_000_000, 1, 10, 0)
        second.watch.observe(context.models, second.metrics)
    told = msgspec.msgpack.decode(report_for_others(others.contexts["gateway_1"], STATE), type=Report)  # type: ignore[arg-type]
    assert len(told.intervals["tiny"]) == NUM_LAST_MINUTE + 1


async def test_a_report_is_read_as_it_was_written() -> None:
    """Red if a part of a state does not survive the way between two gateways."""
    _, second, _, others = two()
    await second.complete()
    second.insight.decisions(Decision.ROUTE, "r", worker="d0", reason="fastest", split=True, num_uncached_tokens=3)
    context = others.contexts["gateway_1"]
    assert context is not None
    written = gather(context, context.watch)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=Report)
    assert isinstance(read.state, State) and read == written
