"""Who is told of a worker's load, and how often it is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
from recorded_links import RecordedLinks

from relevo.core.baton import SampledToken
from relevo.core.events import ExpertLoads, StepCosts, TokenOutput, WireRefusal, WorkerLoad
from relevo.core.ids import PeerId, RequestId
from relevo.core.kv import KVRefusal
from relevo.core.plan import StepPlan
from relevo.core.ports import KVTransport
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.load_reports import LoadReports
from relevo.kv.transport_set import TransportSet
from relevo.policy.perf.model_work import ModelWork
from relevo.policy.perf.step_costs import StepCostModel
from relevo.policy.worker.core import WorkerCore
from relevo.policy.worker.scheduler import Scheduler, StepOutcome
from relevo.wire.messages import ExpertReport

ONE, TWO = PeerId(0), PeerId(1)
REQUEST = EngineRequest(request_id=RequestId("r"), prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=1, seed=0))
OUTPUT = TokenOutput(RequestId("r"), 0, (SampledToken(5),))


def told(links: RecordedLinks) -> list[tuple[PeerId, str]]:
    return [(gateway, type(message).__name__) for gateway, message in links.told]


class CountingScheduler:
    num_preemptions = num_prefix_queries = num_prefix_hits = 0
    config: ClassVar = SimpleNamespace(max_batched_tokens=256, max_prefill_tokens=64)

    def __init__(self) -> None:
        self.num_loads = 0
        self.requests: dict[str, object] = {}

    def load(self, costs: StepCosts) -> WorkerLoad:
        self.num_loads += 1
        return WorkerLoad(num_running=self.num_loads, costs=costs)


class QuietTransport:
    name = "quiet"
    num_refused_writes = 2
    num_refused_connections: ClassVar = {KVRefusal.SECRET: 3}


@pytest.fixture
def scheduler() -> CountingScheduler:
    return CountingScheduler()


@pytest.fixture
def links() -> RecordedLinks:
    return RecordedLinks(2)


@pytest.fixture
def reports(scheduler: CountingScheduler, links: RecordedLinks) -> LoadReports:
    transports = TransportSet([cast("KVTransport", QuietTransport())], "arena", "box")
    core = WorkerCore(cast("Scheduler", scheduler))
    return LoadReports(core, StepCostModel(), transports, links, 8)


def test_a_step_whose_outputs_reach_every_gateway_counts_the_load_once(
    reports: LoadReports, scheduler: CountingScheduler, links: RecordedLinks
) -> None:
    """Turns red when a decode step pays for a second report that is sent to no gateway."""
    reports.send_outputs({ONE: [OUTPUT], TWO: [OUTPUT]})
    reports.publish()
    assert told(links) == [(ONE, "StepOutputs"), (TWO, "StepOutputs")]
    assert scheduler.num_loads == 1


def test_a_gateway_without_outputs_gets_a_report(reports: LoadReports, links: RecordedLinks) -> None:
    reports.send_outputs({TWO: [OUTPUT]})
    reports.publish()
    assert told(links) == [(TWO, "StepOutputs"), (ONE, "LoadReport")]


def test_a_change_after_the_outputs_is_told_to_every_gateway(reports: LoadReports, links: RecordedLinks) -> None:
    """A handoff that ends behind its step's outputs moves the load that these told."""
    reports.send_outputs({ONE: [OUTPUT]})
    reports.changed()
    reports.publish()
    assert told(links) == [(ONE, "StepOutputs"), (ONE, "LoadReport"), (TWO, "LoadReport")]


def test_nothing_is_said_twice(reports: LoadReports, links: RecordedLinks) -> None:
    reports.changed()
    reports.publish()
    reports.publish()
    assert told(links) == [(ONE, "LoadReport"), (TWO, "LoadReport")]


def test_refusals_of_the_transports_and_of_the_core_are_one_count(reports: LoadReports) -> None:
    reports.core.num_withdrawn += 1
    assert reports.counters().num_refused_writes == 3


def test_refusals_at_both_doors_of_a_worker_are_reported_by_reason(reports: LoadReports, links: RecordedLinks) -> None:
    links.num_refused_connections[WireRefusal.USER] = 1
    assert reports.counters().num_refused_connections == {"kv/secret": 3, "wire/user": 1}


def test_what_was_refused_is_told_once(reports: LoadReports, links: RecordedLinks) -> None:
    """Red when a worker that no client asks for anything keeps it to itself."""
    for _ in range(2):
        reports.note_refusals()
        reports.publish()
    assert told(links) == [(ONE, "LoadReport"), (TWO, "LoadReport")]
    links.num_refused_connections[WireRefusal.USER] = 1
    reports.note_refusals()
    reports.publish()
    assert len(told(links)) == 4


def test_the_largest_step_is_told_beside_the_budget(reports: LoadReports) -> None:
    """Red when a mean hides a step above its budget, or when decodes do not count."""
    for num_steps, num_prompt, num_decodes in [(1, 8, 1), (1, 200, 3), (5, 0, 64)]:
        reports.count_steps(num_steps, num_prompt + num_decodes, num_prompt, StepOutcome({}))
    counters = reports.counters()
    assert (counters.largest_step_tokens, counters.step_budget_tokens) == (203, 256)
    assert counters.prefill_budget_tokens == 64


def test_a_step_counts_its_seconds_and_what_it_multiplied_and_read(reports: LoadReports) -> None:
    """Red when a chunk's tokens are taken to see no earlier ones, or when mid-prompt rows are charged with logits."""
    plan = StepPlan(
        step_id=1,
        sequence_ids=[1, 2],
        starts=[9, 4],
        lengths=[1, 3],
        last_token_ids=[0, 0],
        num_draws=[2, 0],
        num_decodes=1,
    )
    reports.work = ModelWork(
        weight_bytes=1000, products_per_token=50, head_products=30, attention_products=4, kv_bytes_per_token=10
    )
    for _ in range(2):
        reports.count_work(plan, 0.25)
    counters = reports.counters()
    num_pairs = 10 + (5 + 6 + 7)
    assert counters.busy_s == 0.5
    assert counters.product_ops == 2 * 2 * (4 * 50 + 1 * 30 + num_pairs * 4)
    assert counters.read_bytes == 2 * (1000 + (10 + 7) * 10)


def test_tokens_of_experts_are_told_when_nothing_runs_and_seldom_else(
    reports: LoadReports, scheduler: CountingScheduler, links: RecordedLinks
) -> None:
    """Red when each step pays for thousands of numbers, or when the last steps of all are never told."""
    scheduler.requests = {"r": object()}
    reports.expert_loads = lambda: ExpertLoads(layers=(0,), tokens=((reports.num_steps, 0),))
    for _ in range(600):
        reports.num_steps += 1
        reports.publish()
    assert told(links) == [(ONE, "ExpertReport"), (TWO, "ExpertReport")] * 2
    scheduler.requests = {}
    reports.publish()
    reports.publish()
    assert told(links)[4:] == [(ONE, "ExpertReport"), (TWO, "ExpertReport")]
    assert links.told[-1][1] == ExpertReport(ExpertLoads(layers=(0,), tokens=((600, 0),)))
