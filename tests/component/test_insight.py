"""What a dispatcher remembers for those who watch, over real workers in one process."""

from __future__ import annotations

import asyncio

from in_process_stack import in_process_stack, request_for, until

from relevo.core.decisions import Decision
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.request import EngineRequest, SamplingParams
from relevo.orchestrator.decision_ring import MAX_OTHERS, MAX_ROUTES, DecisionRing
from relevo.orchestrator.insight import MAX_SESSIONS, Carried, Insight

SPLIT = {"prefill-0": "prefill", "decode-0": "decode"}
PROMPT = list(range(20))


async def test_a_handoff_is_counted_where_it_went() -> None:
    """Red if prompts, tokens or handed tokens are put down to another worker, or a gap spans two workers."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        tokens, _ = await gateway.tokens(request_for(0, PROMPT, session=b"s" * 16))
        insight = gateway.insight
        computed_by = next(iter(insight.prompts))
        assert insight.prompts == {computed_by: Carried(1, len(PROMPT), 0)}
        outputs = {worker.worker_id: counted.num_tokens for worker, counted in insight.outputs.items()}
        assert sum(outputs.values()) == len(tokens) == 8
        gaps = {worker.worker_id: counted.gaps.num_samples for worker, counted in insight.outputs.items()}
        if computed_by == "prefill-0":
            assert insight.handoffs["prefill-0", "decode-0"].num_tokens == len(PROMPT)  # type: ignore[index]
            assert outputs == {"prefill-0": 1, "decode-0": 7} and gaps == {"prefill-0": 0, "decode-0": 6}
        else:
            assert gaps == {"decode-0": 7}
        (session,) = insight.sessions.values()
        assert (session.worker_id, session.num_prompt_tokens, session.num_requests) == ("decode-0", len(PROMPT), 1)


async def test_decisions_have_their_reason_and_a_worker_that_leaves_is_one() -> None:
    """Red if a drain is told nowhere, or what every request does takes the place of what was decided."""
    async with in_process_stack(SPLIT, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        await gateway.tokens(request_for(0, PROMPT))
        leaving = stack.workers["prefill-0"].loop
        leaving.drain()
        assert leaving.may_leave(0)
        decisions = gateway.insight.decisions
        await until(lambda: any(each.decision is Decision.LEAVE for each in decisions.since(0)))
        noted = decisions.since(0)
        kinds = [each.decision for each in noted]
        assert kinds[:2] == [Decision.READY, Decision.READY]
        assert Decision.ROUTE in kinds and Decision.ARRIVE not in kinds
        assert all(each.facts["reason"] for each in noted if each.decision in (Decision.ROUTE, Decision.PREFILL))
        assert {each.facts["worker"] for each in noted if each.decision is Decision.LEAVE} == {"prefill-0"}


async def test_what_runs_is_told_with_its_phase_and_forgotten_when_it_ends() -> None:
    async with in_process_stack({"w0": "unified"}, num_gateways=1) as stack:
        gateway, worker = stack.gateways[0], stack.workers["w0"]
        worker.hold()
        running = asyncio.create_task(gateway.tokens(request_for(0, PROMPT)))
        await until(lambda: bool(gateway.insight.running(10)))
        (told,) = gateway.insight.running(10)
        assert (told.num_prompt_tokens, told.num_output_tokens) == (len(PROMPT), 0)
        (tenant,) = gateway.insight.tenants()
        assert (tenant.tenant, tenant.num_waiting, tenant.num_sent) == ("", 0, 1)
        assert gateway.insight.running(0) == []
        worker.go_on()
        await running
        assert not gateway.insight.running(10) and not gateway.insight.tenants()


def test_what_is_rare_is_not_pushed_out_by_traffic() -> None:
    """Red if one ring holds both: then a fence is gone after seconds."""
    ring = DecisionRing(now_ns=lambda: 1)
    ring(Decision.FENCE, worker="w0", epoch=1, reason="silent")
    for number in range(10 * MAX_ROUTES):
        ring(Decision.ROUTE, f"r{number}", worker="w0", reason="fastest")
        ring(Decision.ARRIVE, f"r{number}", num_prompt_tokens=1)
    for _ in range(MAX_OTHERS - 1):
        ring(Decision.READY, worker="w0", epoch=1)
    kept = ring.since(0)
    assert kept[0].decision is Decision.FENCE and len(kept) == MAX_ROUTES + MAX_OTHERS
    assert [each.number for each in kept] == sorted(each.number for each in kept)
    assert ring.since(kept[-2].number) == [kept[-1]]


def test_sessions_and_workers_that_are_gone_take_no_memory() -> None:
    """Red if a session that was used long ago stays, or a worker that is no member any more."""
    insight, worker = Insight(), WorkerRef(WorkerId("w0"), 1)
    for number in range(MAX_SESSIONS + 10):
        insight.routed(request_of(number), worker, 1, number)
    insight.routed(request_of(10), worker, 1, 10_000)
    assert len(insight.sessions) == MAX_SESSIONS
    assert next(reversed(insight.sessions)) == request_of(10).session
    assert insight.sessions[request_of(10).session].num_requests == 2
    insight.asked(worker, 5)
    insight.handed_over(worker, WorkerRef(WorkerId("w1"), 1), 5, 5)
    insight.keep_only(frozenset([WorkerRef(WorkerId("w1"), 1)]))
    assert not insight.prompts and not insight.handoffs and not insight.outputs


def request_of(number: int) -> EngineRequest:
    session = number.to_bytes(16, "little")
    sampling = SamplingParams(max_tokens=1, seed=0)
    return EngineRequest(request_id=RequestId("r"), prompt_token_ids=(1, 2), sampling=sampling, session=session)
