"""What is in the state: the numbers of /metrics, rates between two moments, who is told what, a history that stays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_gateway import MODEL, ScriptedGenerator, says, scripted_app, served_model
from starlette.types import ASGIApp

from relevo.core.baton import SampledToken
from relevo.core.decisions import Decision
from relevo.core.events import StepCosts, StepCounters, TokenOutput, WorkerLimits, WorkerLoad
from relevo.core.ids import RequestId, WorkerId, WorkerRef
from relevo.core.request import EngineRequest, SamplingParams, ServiceTerms
from relevo.gateway.console.state import State
from relevo.gateway.console.watch import Watch
from relevo.gateway.http.auth import ApiKeys, Caller
from relevo.gateway.metering.key_use import KeyUse
from relevo.gateway.metering.meter import NoMeter
from relevo.gateway.text.served_models import ServedModels
from relevo.orchestrator.insight import Insight, LastOutput, RunningRequest
from relevo.orchestrator.ports import EngineStatus, LineStatus, WorkerStatus
from relevo.policy.admission.words import TenantCount
from relevo.telemetry.latency import percentile
from relevo.telemetry.metrics import GatewayMetrics

EVIL = "</script><script>alert(1)</script>\x00\x1b[31m\r\n\u202e\U0001f600"
P0, D0 = WorkerRef(WorkerId("p0"), 1), WorkerRef(WorkerId("d0"), 1)
LOAD = WorkerLoad(
    num_running=3,
    num_waiting=2,
    num_reserved=1,
    num_waiting_prefill_tokens=70,
    num_decode_kv_tokens=900,
    num_free_blocks=4,
    num_reusable_blocks=3,
    num_held_blocks=2,
    num_quarantined_blocks=1,
    num_total_blocks=10,
    costs=StepCosts(base_s=0.01, per_token_s=0.001, per_kv_token_s=1e-6),
)
COUNTERS = StepCounters(
    num_steps=10,
    num_prefill_tokens=200,
    num_generation_tokens=50,
    num_preemptions=1,
    num_prefix_queries=300,
    num_prefix_hits=100,
    transferred_bytes=4096,
    transfer_s=0.5,
    step_budget_tokens=512,
    busy_s=1.0,
    product_ops=1e9,
    read_bytes=2e9,
)


def worker(ref: WorkerRef, role: str, counters: StepCounters = COUNTERS, **parts: Any) -> WorkerStatus:
    return WorkerStatus(
        worker_id=ref.worker_id,
        role=role,
        ready=parts.pop("ready", True),
        epoch=ref.epoch,
        pid=1,
        load=LOAD,
        counters=counters,
        limits=WorkerLimits(product_ops_per_s=1e10, read_bytes_per_s=1e10),
        **parts,
    )


def status(*workers: WorkerStatus) -> EngineStatus:
    lines = (LineStatus(name="interactive", num_waiting=4, oldest_wait_s=1.5),)
    return EngineStatus(ready=True, reason="", num_queued=4, num_in_flight=9, workers=workers, lines=lines)


class Budgets(NoMeter):
    def __init__(self, *uses: KeyUse) -> None:
        self.uses = uses

    def key_uses(self) -> tuple[KeyUse, ...]:
        return self.uses


@dataclass
class Server:
    """One gateway whose workers, requests and clock are set by hand."""

    keys: ApiKeys = field(default_factory=ApiKeys)
    meter: NoMeter = field(default_factory=NoMeter)
    now_s: float = 1_000.0
    name: str = MODEL
    insight: Insight = field(default_factory=Insight)
    metrics: GatewayMetrics = field(default_factory=lambda: GatewayMetrics([MODEL]))
    generator: ScriptedGenerator = field(default_factory=lambda: ScriptedGenerator(says("abc")))
    watch: Watch = field(init=False)
    app: ASGIApp = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(monotonic_s=lambda: self.now_s, unix_s=lambda: 1_800_000_000.0)
        self.generator.engine_status = status(worker(P0, "prefill"), worker(D0, "decode"))
        served = served_model(self.generator, insight=self.insight, names=(self.name, "alias"))
        self.app = scripted_app(
            ServedModels([served]), self.metrics, watch=self.watch, api_keys=self.keys, meter=self.meter
        )

    async def get(self, path: str, key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            return await client.get(path)

    async def state(self, key: str = "") -> State:
        response = await self.get("/v1/state", key)
        assert response.status_code == 200, response.text
        return msgspec.json.decode(response.content, type=State)

    async def complete(self, model: str = MODEL) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://gateway") as client:
            body = {"model": model, "prompt": "hi there", "max_tokens": 20}
            assert (await client.post("/v1/completions", json=body)).status_code == 200

    async def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families((await self.get("/metrics")).text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def request(request_id: str, tenant: str, session: bytes) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId(request_id),
        prompt_token_ids=(1,) * 8,
        sampling=SamplingParams(max_tokens=1, seed=0),
        session=session,
        terms=ServiceTerms(tenant=tenant),
    )


async def test_counters_are_those_of_the_metrics_at_the_same_instant() -> None:
    """Red if either counts elsewhere, of another incarnation, or under another of a model's names."""
    server = Server()
    await server.complete()
    await server.complete("alias")
    server.metrics.admission_rejected("alias", "max_ttft")
    server.metrics.handoff_finished(MODEL, "completed", 0.1, 100, 0.1)
    await server.state()
    again = WorkerRef(D0.worker_id, 2)
    server.generator.engine_status = status(worker(P0, "prefill"), worker(again, "decode"))
    state = await server.state()
    decode = state.workers[1].totals
    of_worker = {
        "vllm:generation_tokens_total": (decode.num_generation_tokens, 100),
        "relevo:prefill_tokens_total": (decode.num_prefill_tokens, 400),
        "relevo:steps_total": (decode.num_steps, 20),
        "vllm:num_preemptions_total": (decode.num_preemptions, 2),
        "vllm:prefix_cache_queries_total": (decode.num_prefix_queries, 600),
        "vllm:prefix_cache_hits_total": (decode.num_prefix_hits, 200),
        "relevo:kv_transfer_bytes_total": (decode.transferred_bytes, 8192),
        "relevo:worker_busy_seconds_total": (decode.busy_s, 2.0),
        "relevo:worker_restarts_total": (decode.num_restarts, 1),
    }
    for name, (told, expected) in of_worker.items():
        label = "engine" if name.startswith("vllm:") else "worker"
        assert told == await server.metric(name, **{label: "d0"}) == expected, name
    totals = state.models[0].totals
    assert sum(totals.num_requests.values()) == await server.metric("vllm:request_success_total") == 2
    assert totals.num_refusals == {"max_ttft": await server.metric("vllm:admission_rejections_total")}
    assert totals.num_handoffs == {"completed": await server.metric("relevo:handoffs_total")}
    assert totals.num_prompt_tokens == await server.metric("vllm:prompt_tokens_total") == 16
    assert totals.num_cached_tokens == await server.metric("vllm:prompt_tokens_cached_total")
    count = await server.metric("vllm:inter_token_latency_seconds_count")
    assert state.latency[0].itl.num_samples == count > 0
    assert state.latency[0].ttft.num_samples == await server.metric("vllm:time_to_first_token_seconds_count") == 2


async def test_a_worker_says_what_it_holds_and_how_much_of_its_own_limit_it_uses() -> None:
    """Red if a rate is over another time than it says, or a limit is that of the other role."""
    server = Server()
    first = await server.state()
    assert first.workers[0].rates.prefill_tokens_per_s is None, "nothing to compare with"
    server.now_s += 5.0
    more = replace(
        COUNTERS,
        num_steps=60,
        num_prefill_tokens=700,
        num_generation_tokens=100,
        num_prefix_queries=500,
        num_prefix_hits=150,
        busy_s=3.5,
        product_ops=1e9 + 2.5e10,
        read_bytes=2e9 + 4e10,
    )
    server.generator.engine_status = status(
        worker(P0, "prefill", more), worker(D0, "decode", more, ready=False, why_not_ready="draining")
    )
    prefill, decode = (await server.state()).workers
    rates = prefill.rates
    assert rates.window_s == pytest.approx(5.0)
    assert rates.steps_per_s == pytest.approx(10.0)
    assert rates.prefill_tokens_per_s == pytest.approx(100.0)
    assert rates.generation_tokens_per_s == pytest.approx(10.0)
    assert rates.hit_fraction == pytest.approx(0.25)
    assert prefill.busy_fraction == pytest.approx(0.5)
    assert (prefill.limit, prefill.limit_fraction) == ("products", pytest.approx(0.5))
    assert (decode.limit, decode.limit_fraction) == ("bandwidth", pytest.approx(0.8))
    assert (decode.is_ready, decode.why_not_ready) == (False, "draining")
    blocks = prefill.blocks
    assert blocks.num_held + blocks.num_reusable + blocks.num_free + blocks.num_quarantined == blocks.num_total == 10
    assert (prefill.num_running, prefill.num_waiting, prefill.num_reserved) == (3, 2, 1)
    assert (prefill.num_waiting_prefill_tokens, prefill.num_decode_kv_tokens) == (70, 900)
    assert prefill.costs.per_token_s == 0.001


async def test_gaps_are_those_of_the_worker_that_gave_both_tokens() -> None:
    """Red if the time of a handoff counts against the decode worker, or percentiles are off by more than 2 %."""
    server, last = Server(), LastOutput()
    now_ns, gaps_ns = 0, [10_000_000 + 37_000 * number for number in range(200)]
    for number, gap_ns in enumerate([0, 5_000_000_000, *gaps_ns]):
        now_ns += gap_ns
        output = TokenOutput(RequestId("r"), 0, (SampledToken(1),))
        server.insight.gave(last, P0 if number == 0 else D0, output, now_ns)
    prefill, decode = (await server.state()).workers
    assert prefill.itl.num_samples == 0
    assert decode.itl.num_samples == len(gaps_ns)
    for told, q in ((decode.itl.p50_s, 0.5), (decode.itl.p99_s, 0.99)):
        assert told == pytest.approx(percentile([gap_ns / 1e9 for gap_ns in gaps_ns], q), rel=0.02)


async def test_flows_are_what_went_between_two_processes_of_late() -> None:
    server = Server()
    await server.state()
    server.now_s += 5.0
    server.insight.asked(P0, 100)
    server.insight.handed_over(P0, D0, 100, 5_000)
    server.insight.gave(LastOutput(), D0, TokenOutput(RequestId("r"), 0, (SampledToken(1),) * 10), 1)
    flows = {(each.kind, each.source, each.target): each for each in (await server.state()).flows}
    assert flows["prompt", "gateway", "p0"].tokens_per_s == pytest.approx(20.0)
    assert flows["handoff", "p0", "d0"].bytes_per_s == pytest.approx(1_000.0)
    assert flows["output", "d0", "gateway"].tokens_per_s == pytest.approx(2.0)
    server.now_s += 60.0
    await server.state()
    server.now_s += 5.0
    assert (await server.state()).flows == (), "nothing of late"


async def test_a_history_stays_bounded_over_a_day() -> None:
    """Red if anything is kept of what is older than ten minutes, or grows with what happens."""
    server = Server(generator=ScriptedGenerator())
    last, num_ns = LastOutput(), 0
    models = ServedModels([served_model(server.generator, insight=server.insight)])
    for took_s in [60] * (24 * 60 - 15) + [5] * 180:
        server.now_s += took_s
        num_ns += took_s * 1_000_000_000
        server.insight.latency.wrote_first(num_ns % 900_000_000, 1, 10, 5)
        server.insight.gave(last, D0, TokenOutput(RequestId("r"), 0, (SampledToken(1),)), num_ns)
        server.insight.decisions(Decision.ROUTE, f"r{num_ns}", worker="d0", reason="fastest")
        server.insight.routed(request(f"r{num_ns}", "t", num_ns.to_bytes(16, "little")), D0, 1, num_ns)
        server.watch.observe(models, server.metrics)
    response = await server.get("/v1/state")
    assert len(response.content) < 100_000
    assert len(server.insight.sessions) == 256
    state = msgspec.json.decode(response.content, type=State)
    assert state.history is not None and len(state.history.at_unix_s) == 120
    for model in state.history.models:
        columns = [getattr(model, name) for name in model.__struct_fields__ if name != "model"]
        assert {len(column) for column in columns} == {120}
    assert state.history.models[0].hit_fraction == [0.5] * 120
    assert len(state.decisions) == 200 and len(state.sessions) == 40
    assert sum(len(interval.ttft) for interval in server.watch.observe(models, server.metrics).intervals[MODEL]) <= 121


class TwoTenants:
    """Implements gateway.http.auth.Authenticator."""

    is_open = False

    def identify(self, headers: Any) -> Caller:
        key = headers["authorization"].removeprefix("Bearer ")
        tenant = EVIL if key == "evil" else key
        return Caller(tenant=tenant, key_id=f"{key}-id", is_admin=key == "admin")


def use(key: str) -> KeyUse:
    return KeyUse(
        key_id=f"{key}-id",
        prefix="rv-abc",
        name=f"{key}'s",
        tenant=EVIL if key == "evil" else key,
        spent=Decimal("1.25"),
        budget=Decimal(5),
        period="day",
        tokens_per_minute=1000,
        remaining_tokens=900,
    )


def with_tenants() -> Server:
    server = Server(keys=TwoTenants(), meter=Budgets(use("evil"), use("good")), name=EVIL)  # type: ignore[arg-type]
    insight = server.insight
    insight.tenants = lambda: [TenantCount(EVIL, 5, 1, 2), TenantCount("good", 1, 0, 1)]
    insight.running = lambda most: [
        RunningRequest(RequestId(f"{tenant}'s request"), tenant, "decoding", 0, 8, 2) for tenant in (EVIL, "good")
    ]
    insight.decisions.tenant_of = lambda request_id: EVIL if EVIL in request_id else "good"
    for number, tenant in enumerate((EVIL, "good")):
        insight.decisions(Decision.ROUTE, f"{tenant}'s request", worker="d0", reason="fastest")
        insight.routed(request("r", tenant, bytes([number]) * 16), D0, 2, 0)
    insight.decisions(Decision.FENCE, worker="d0", epoch=1, reason="silent")
    insight.decisions(Decision.ROLE, worker="d0", before="decode", role="unified", reason=f"for {EVIL} and good")
    return server


async def test_an_admin_sees_every_tenant_by_name() -> None:
    state = await with_tenants().state("admin")
    assert state.viewer.sees_all and state.viewer.is_admin
    assert [(line.number, line.tenant) for line in state.tenants] == [(1, EVIL), (2, "good")]
    assert {each.tenant for each in state.sessions} == {EVIL, "good"} == {each.tenant for each in state.budgets}
    assert (state.budgets[0].spent, state.budgets[0].spent_fraction) == ("1.25", 0.25)
    assert len(state.requests.in_flight) == 2
    assert [each.request_id for each in state.decisions] == [f"{EVIL}'s request", "good's request", "", ""]
    assert state.decisions[-1].reason == f"for {EVIL} and good"


@pytest.mark.parametrize("key", ["good", "evil"])
async def test_a_tenant_sees_its_own_and_of_the_other_numbers(key: str) -> None:
    """Red if a name, a budget, a session or a request of another tenant is anywhere in the body."""
    server = with_tenants()
    own = EVIL if key == "evil" else key
    state = await server.state(key)
    assert not state.viewer.sees_all and state.viewer.tenant == own
    assert {(line.tenant, line.is_own) for line in state.tenants} == {(own, True), ("", False)}
    assert sum(line.num_waiting for line in state.tenants) == 6, "the other's numbers are there"
    assert [each.tenant for each in state.sessions] == [own]
    assert [each.key_id for each in state.budgets] == [f"{key}-id"]
    assert [each.request_id for each in state.requests.in_flight] == [f"{own}'s request"]
    assert {each.request_id for each in state.decisions} == {"", f"{own}'s request"}
    assert [each.reason for each in state.decisions] == ["fastest", "fastest", "silent", ""]
    if key == "evil":  # the other one's name is the model's too
        assert b"good" not in (await server.get("/v1/state", key)).content


async def test_any_text_is_a_name_and_stays_one_line_of_json() -> None:
    """Red if a name could end an event, or a script of a page."""
    server = with_tenants()
    body = (await server.get("/v1/state", "admin")).content
    assert b"\n" not in body and b"\r" not in body and b"\x00" not in body and b"\x1b" not in body
    assert msgspec.json.decode(body)["models"][0]["name"] == EVIL
