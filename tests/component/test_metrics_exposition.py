"""The text of /metrics, as a Prometheus server and somebody else's dashboard read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from relevo.core.baton import PrefillFacts
from relevo.core.events import ExpertLoads, StepCosts, StepCounters, WorkerLimits, WorkerLoad
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup, KVLayout
from relevo.orchestrator.ports import EngineStatus, LineStatus, WorkerStatus
from relevo.policy.cluster.checks import Denial
from relevo.telemetry.bulk_observation import observe_many
from relevo.telemetry.latency import RequestRecord, RequestTimes
from relevo.telemetry.metric import Kind, Origin
from relevo.telemetry.metric_table import TABLE, one_two_five
from relevo.telemetry.metrics import GatewayMetrics
from relevo.telemetry.tenant_counters import MAX_TENANTS
from relevo.telemetry.worker_series import WorkerSeries

MODEL = "tiny"
LAYOUT = KVLayout("hash", "float32", 16, (KVGroup.full(range(2), 2, 8),))


def worker(worker_id: str = "w0", role: str = "decode", epoch: int = 1, **parts: object) -> WorkerStatus:
    defaults = {"ready": True, "pid": 1, "load": WorkerLoad(), "counters": StepCounters(), "layout": LAYOUT}
    return WorkerStatus(**{"worker_id": worker_id, "role": role, "epoch": epoch} | defaults | parts)  # type: ignore[arg-type]


def record(**parts: object) -> RequestRecord:
    facts = PrefillFacts(
        worker_id=WorkerId("w1"), num_prompt_tokens=40, num_cached_tokens=16, queue_s=0.25, prefill_s=0.5
    )
    defaults = {
        "request_id": RequestId("r"),
        "model": MODEL,
        "times": RequestTimes(0, [10**9, 11 * 10**8, 13 * 10**8], 14 * 10**8),
        "num_prompt_tokens": 40,
        "num_cached_tokens": 16,
        "num_output_tokens": 3,
        "num_longest_output_tokens": 2,
        "n": 1,
        "max_tokens": 64,
        "finish_reason": "stop",
        "outcome": "finished",
        "facts": facts,
    }
    return RequestRecord(**defaults | parts)  # type: ignore[arg-type]


@dataclass
class Number:
    """Implements telemetry.metrics.NumberView."""

    number: int = 3
    num_decisions: dict[str, int] = field(default_factory=lambda: {"more": 2})
    num_commands: dict[str, int] = field(default_factory=lambda: {"done": 1})


@dataclass
class Planner:
    """Implements telemetry.metrics.PlanView."""

    model: str = MODEL
    mode_now: str = "1p1d"
    num_decisions: dict[str, int] = field(default_factory=lambda: {"hold": 3})
    number: Number = field(default_factory=Number)


@dataclass
class Cluster:
    """Implements telemetry.metrics.ClusterCounts."""

    num_nodes: dict[str, int] = field(default_factory=lambda: {"joined": 2})
    num_denied: dict[str, int] = field(default_factory=lambda: {Denial.CLOCK: 1})
    num_gone: int = 1
    round_trips_s: dict[str, float] = field(default_factory=lambda: {"b": 0.002})
    num_refused: dict[str, int] = field(default_factory=lambda: {"certificate": 2})
    num_fences: dict[str, int] = field(default_factory=lambda: {"b": 1})
    certificates_left: dict[str, float] = field(default_factory=lambda: {"b": 0.6})


@dataclass
class Scrape:
    """Samples of one scrape by name and labels."""

    metrics: GatewayMetrics = field(default_factory=lambda: GatewayMetrics([MODEL]))

    def samples(self, *workers: WorkerStatus, num_queued: int = 0) -> dict[tuple[str, frozenset[str]], float]:
        status = EngineStatus(
            ready=True,
            reason="",
            num_queued=num_queued,
            num_in_flight=num_queued + 6,
            workers=workers,
            lines=(LineStatus(name="batch", num_waiting=2, oldest_wait_s=1.5),),
        )
        body, content_type = self.metrics.render({MODEL: status})
        assert content_type.startswith("text/plain; version=0.0.4")
        samples = [s for family in text_string_to_metric_families(body.decode()) for s in family.samples]
        by_key = {(s.name, frozenset(f"{k}={v}" for k, v in s.labels.items())): s.value for s in samples}
        assert len(by_key) == len(samples), "one series was exported twice"
        return by_key

    def value(self, name: str, *workers: WorkerStatus, num_queued: int = 0, **labels: str) -> float:
        """Sum over the series of `name` that carry `labels`; KeyError if there is none."""
        wanted = {f"{key}={value}" for key, value in labels.items()}
        samples = self.samples(*workers, num_queued=num_queued)
        found = [v for (n, given_labels), v in samples.items() if n == name and wanted <= given_labels]
        if not found:
            raise KeyError((name, labels))
        return sum(found)


@pytest.fixture
def scrape() -> Iterator[Scrape]:
    yield Scrape()


DASHBOARD_SERIES = [  # what published vLLM dashboards and autoscalers query; red when one is renamed
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_bucket",
    "vllm:request_prefill_time_seconds_bucket",
    "vllm:request_decode_time_seconds_bucket",
    "vllm:request_inference_time_seconds_bucket",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_params_n_bucket",
    "vllm:request_params_max_tokens_bucket",
]


@pytest.mark.parametrize("name", DASHBOARD_SERIES)
def test_dashboards_find_their_series_before_the_first_request(scrape: Scrape, name: str) -> None:
    load = WorkerLoad(num_total_blocks=4, num_free_blocks=4)
    assert scrape.value(name, worker(load=load), model_name=MODEL) in (0.0, 1.0)
    labels = next(labels for n, labels in scrape.samples(worker(load=load)) if n == name)
    assert {"model_name", "engine"} <= {label.partition("=")[0] for label in labels}


def test_names_follow_the_conventions() -> None:
    for metric in TABLE:
        assert re.fullmatch(r"((vllm|relevo):)?[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith(".")
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels)


def test_every_row_of_the_table_is_exported_with_its_labels() -> None:
    """Red when a metric is in the table (and so in the docs) but nothing moves it, or under other labels."""
    scrape = Scrape(GatewayMetrics([MODEL], by_tenant=True))
    scrape.metrics.request_finished(record())
    scrape.metrics.admission_rejected(MODEL, "queue_full")
    scrape.metrics.http_response("/v1/models", "GET", 200)
    scrape.metrics.http_took("/v1/models", "GET", 0.1)
    scrape.metrics.show_plans(lambda: [Planner()])
    scrape.metrics.show_cluster(Cluster())
    limits = WorkerLimits(product_ops_per_s=1.0, read_bytes_per_s=1.0)
    load, loads = (
        WorkerLoad(num_total_blocks=4, num_free_blocks=4),
        ExpertLoads(layers=(1,), tokens=((2,),), ranks=((2,),)),
    )
    samples = scrape.samples(worker(load=load, limits=limits, expert_loads=loads))
    labels_of = {name: {label.partition("=")[0] for label in labels} for name, labels in samples}
    for metric in (each for each in TABLE if each.origin is not Origin.GATEWAYS):
        name = metric.name + ("_count" if metric.kind is Kind.HISTOGRAM else "")
        assert labels_of[name] == set(metric.labels), metric.name


def test_token_buckets() -> None:
    assert one_two_five(250) == (1, 2, 5, 10, 20, 50, 100, 200)


def test_a_completed_request(scrape: Scrape) -> None:
    scrape.metrics.request_finished(record())
    sums = {
        "vllm:time_to_first_token_seconds": 1.0,
        "vllm:inter_token_latency_seconds": 0.3,
        "vllm:request_time_per_output_token_seconds": 0.2,
        "vllm:e2e_request_latency_seconds": 1.4,
        "vllm:request_queue_time_seconds": 0.25,
        "vllm:request_prefill_time_seconds": 0.5,
        "vllm:request_decode_time_seconds": 0.3,
        "vllm:request_inference_time_seconds": 0.8,
        "vllm:request_prompt_tokens": 40,
        "vllm:request_generation_tokens": 3,
        "vllm:request_max_num_generation_tokens": 2,
        "vllm:request_prefill_kv_computed_tokens": 24,
        "vllm:request_params_n": 1,
        "vllm:request_params_max_tokens": 64,
    }
    for name, expected in sums.items():
        assert scrape.value(f"{name}_sum", model_name=MODEL) == pytest.approx(expected), name
        assert scrape.value(f"{name}_count") == (2 if "inter_token" in name else 1)
    assert scrape.value("vllm:request_success_total", finished_reason="stop") == 1
    assert scrape.value("vllm:request_success_total") == 1
    assert scrape.value("vllm:prompt_tokens_total") == 40
    assert scrape.value("vllm:prompt_tokens_cached_total") == 16
    for source, count in (("local_compute", 24), ("local_cache_hit", 16), ("external_kv_transfer", 0)):
        assert scrape.value("vllm:prompt_tokens_by_source_total", source=source) == count


def test_an_aborted_request_does_not_flatter_latencies(scrape: Scrape) -> None:
    """It is counted, and its tokens' times are real; its end is not one that the model chose."""
    scrape.metrics.request_finished(record(finish_reason="abort", outcome="aborted"))
    scrape.metrics.request_finished(
        record(finish_reason="error", outcome="failed", facts=None, times=RequestTimes(0, [], 10**9))
    )
    assert scrape.value("vllm:request_success_total", finished_reason="abort") == 1
    assert scrape.value("vllm:request_success_total", finished_reason="error") == 1
    assert scrape.value("vllm:time_to_first_token_seconds_count") == 1
    assert scrape.value("vllm:e2e_request_latency_seconds_count") == 0
    assert scrape.value("vllm:request_time_per_output_token_seconds_count") == 0
    assert scrape.value("vllm:prompt_tokens_total") == 40


def test_handoffs(scrape: Scrape) -> None:
    scrape.metrics.handoff_finished(MODEL, "completed", 0.02, 5000, 0.01)
    scrape.metrics.handoff_finished(MODEL, "failed", 0.0, 0, 0.0)
    outcomes = {
        outcome: scrape.value("relevo:handoffs_total", outcome=outcome)
        for outcome in ("completed", "local", "failed", "aborted", "replayed")
    }
    assert outcomes == {"completed": 1, "local": 0, "failed": 1, "aborted": 0, "replayed": 0}
    assert scrape.value("relevo:handoff_seconds_count") == 1
    assert scrape.value("relevo:handoff_seconds_sum") == pytest.approx(0.02)
    assert scrape.value("relevo:handoff_transfer_bytes_sum") == 5000


def test_http_responses_by_class(scrape: Scrape) -> None:
    scrape.metrics.http_response("/v1/completions", "POST", 429)
    scrape.metrics.http_response("/v1/completions", "POST", 400)
    scrape.metrics.http_response("other", "MADEUPBYACLIENT", 405)
    assert scrape.value("http_requests_total", handler="/v1/completions", method="POST", status="4xx") == 2
    assert scrape.value("http_requests_total", method="OTHER") == 1


def test_admission_rejections(scrape: Scrape) -> None:
    scrape.metrics.admission_rejected(MODEL, "queue_full")
    assert scrape.value("vllm:admission_rejections_total", model_name=MODEL, reason="queue_full") == 1


def test_worker_gauges(scrape: Scrape) -> None:
    load = WorkerLoad(
        num_running=3,
        num_waiting=2,
        num_reserved=1,
        num_free_blocks=1,
        num_reusable_blocks=2,
        num_held_blocks=4,
        num_quarantined_blocks=1,
        num_total_blocks=8,
    )
    up, down = worker("w0", load=load), worker("w1", "prefill", ready=False, layout=None)
    labels = {"model_name": MODEL, "engine": "w0", "role": "decode"}
    assert scrape.value("vllm:num_requests_running", up, down, **labels) == 3
    assert scrape.value("vllm:num_requests_waiting", up, down, **labels) == 2
    assert scrape.value("vllm:num_requests_waiting", up, down, num_queued=5, engine="gateway") == 5
    reasons = [
        scrape.value("vllm:num_requests_waiting_by_reason", up, down, num_queued=5, reason=reason)
        for reason in ("capacity", "deferred")
    ]
    assert reasons == [scrape.value("vllm:num_requests_waiting", up, down, num_queued=5), 0]
    assert scrape.value("relevo:requests_in_flight", up, down, num_queued=5) == 11
    assert scrape.value("vllm:kv_cache_usage_perc", up, down, **labels) == pytest.approx(5 / 8)
    assert scrape.value("vllm:kv_cache_usage_perc", up, down, engine="w1") == 0
    info = {"block_size": "16", "num_gpu_blocks": "8", "cache_dtype": "float32"}
    assert scrape.value("vllm:cache_config_info", up, down, **labels, **info) == 1
    blocks = {s: scrape.value("relevo:blocks", up, down, worker="w0", state=s) for s in ("free", "reusable", "held")}
    assert blocks == {"free": 1, "reusable": 2, "held": 4}
    assert scrape.value("relevo:blocks", up, down, worker="w0") == 8
    assert scrape.value("relevo:worker_up", up, down, worker="w0") == 1
    assert scrape.value("relevo:worker_up", up, down, worker="w1", role="prefill") == 0


def test_worker_counters_keep_their_meaning(scrape: Scrape) -> None:
    counters = StepCounters(
        num_steps=1,
        num_prefill_tokens=2,
        num_generation_tokens=3,
        num_preemptions=4,
        num_prefix_queries=6,
        num_prefix_hits=5,
        transferred_bytes=7,
        transfer_s=0.5,
        num_refused_writes=8,
        largest_step_tokens=11,
        step_budget_tokens=12,
        prefill_budget_tokens=6,
        num_refused_connections={"kv/secret": 9, "wire/user": 10},
        busy_s=1.5,
        product_ops=3e12,
        read_bytes=4e9,
    )
    expected = {
        "relevo:steps_total": 1,
        "relevo:prefill_tokens_total": 2,
        "vllm:generation_tokens_total": 3,
        "relevo:decode_tokens_total": 3,
        "vllm:num_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 6,
        "vllm:prefix_cache_hits_total": 5,
        "relevo:kv_transfer_bytes_total": 7,
        "relevo:kv_transfer_seconds_total": 0.5,
        "relevo:refused_writes_total": 8,
        "relevo:largest_step_tokens": 11,
        "relevo:step_budget_tokens": 12,
        "relevo:prefill_budget_tokens": 6,
        "relevo:worker_busy_seconds_total": 1.5,
        "relevo:worker_product_ops_total": 3e12,
        "relevo:worker_read_bytes_total": 4e9,
    }
    for name, value in expected.items():
        assert scrape.value(name, worker(counters=counters)) == value, name
    refused = "relevo:refused_connections_total"
    assert scrape.value(refused, worker(counters=counters), door="kv", reason="secret") == 9
    assert scrape.value(refused, worker(counters=counters), door="wire", reason="user") == 10
    assert scrape.value(refused, worker(counters=counters), door="kv", reason="timeout") == 0


def test_limits_are_exported_where_they_are_known(scrape: Scrape) -> None:
    """Red when an unknown limit becomes 0, by which a utilisation would be infinite."""
    known = worker("w0", limits=WorkerLimits(product_ops_per_s=2e11))
    assert scrape.value("relevo:worker_product_limit_ops_per_second", known, worker="w0") == 2e11
    with pytest.raises(KeyError):
        scrape.value("relevo:worker_read_limit_bytes_per_second", known)


def test_step_costs_are_what_the_worker_measured(scrape: Scrape) -> None:
    load = WorkerLoad(costs=StepCosts(base_s=1e-3, per_token_s=2e-4, per_kv_token_s=3e-7))
    for per, cost_s in (("step", 1e-3), ("token", 2e-4), ("kv_token", 3e-7)):
        assert scrape.value("relevo:step_cost_seconds", worker(load=load), per=per) == cost_s


def collected(series: WorkerSeries, name: str, seen: WorkerStatus) -> float:
    series.observe({MODEL: EngineStatus(ready=True, reason="", workers=(seen,))})
    return sum(s.value for family in series.collect() for s in family.samples if s.name == name)


incarnations = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(incarnations, st.data())
def test_worker_counters_never_fall(lives: list[list[int]], data: st.DataObject) -> None:
    """A worker restarts from zero, or its connection is renewed and shows zeros: the sum of all work stays."""
    series = WorkerSeries()
    done = 0
    for epoch, steps in enumerate(lives, start=1):
        counted = 0
        for num_tokens in steps:
            counted += num_tokens
            reports = [StepCounters(num_generation_tokens=counted)]
            if data.draw(st.booleans(), label="reconnected"):
                reports.append(StepCounters())
            for counters in reports:
                seen = worker(epoch=epoch, counters=counters)
                assert collected(series, "vllm:generation_tokens_total", seen) == done + counted
        assert collected(series, "relevo:worker_restarts_total", worker(epoch=epoch)) == epoch - 1
        done += counted


def test_tokens_of_experts_never_fall() -> None:
    """As of other counters; a gateway may have heard nothing of an incarnation yet."""
    series, name = WorkerSeries(), "relevo:expert_tokens_total"
    lives = (((5, 0), 5), ((), 5), ((5, 2), 7)), (((), 7), ((1, 1), 9))
    for epoch, life in enumerate(lives, start=1):
        for tokens, expected in life:
            loads = ExpertLoads(layers=(3,), tokens=(tokens,)) if tokens else ExpertLoads()
            assert collected(series, name, worker(epoch=epoch, expert_loads=loads)) == expected
    (family,) = (each for each in series.collect() if name.startswith(each.name))
    assert {(s.labels["layer"], s.labels["expert"], s.value) for s in family.samples} == {("3", "0", 6), ("3", "1", 3)}


def test_the_largest_step_is_that_of_the_present_incarnation() -> None:
    series = WorkerSeries()
    for epoch, largest, seen in ((1, 300, 300), (1, 0, 300), (2, 40, 40)):  # a new connection shows zeros first
        counters = StepCounters(largest_step_tokens=largest, step_budget_tokens=512)
        assert collected(series, "relevo:largest_step_tokens", worker(epoch=epoch, counters=counters)) == seen


def test_a_worker_that_was_never_seen(scrape: Scrape) -> None:
    absent = worker(epoch=0, ready=False, layout=None)
    assert scrape.value("relevo:worker_up", absent) == 0
    assert scrape.value("relevo:worker_restarts_total", absent) == 0
    assert scrape.value("vllm:generation_tokens_total", absent) == 0


def test_two_gateways_share_nothing() -> None:
    """Red if metrics land on the process-wide registry, where a second instance would collide."""
    first, second = Scrape(), Scrape()
    first.metrics.request_finished(record())
    assert second.value("vllm:prompt_tokens_total") == 0


def test_what_waits_in_the_gateway_is_told_by_class(scrape: Scrape) -> None:
    assert scrape.value("relevo:requests_in_line", **{"class": "batch"}) == 2
    assert scrape.value("relevo:oldest_wait_seconds", **{"class": "batch"}) == 1.5
    scrape.metrics.deadline_missed("m", "waiting")
    assert scrape.value("relevo:deadline_misses_total", model_name="m", when="waiting") == 1


def test_the_wait_in_line_is_told_by_class(scrape: Scrape) -> None:
    scrape.metrics.left_line(MODEL, "batch", 2.0)
    assert scrape.value("relevo:line_wait_seconds_sum", model_name=MODEL, **{"class": "batch"}) == 2.0
    assert scrape.value("relevo:line_wait_seconds_count", model_name=MODEL, **{"class": "interactive"}) == 0


def test_durations_of_http_answers_have_bounded_labels(scrape: Scrape) -> None:
    """Red when a method that a client made up becomes a label."""
    scrape.metrics.http_took("/v1/models", "GET", 0.2)
    scrape.metrics.http_took("/v1/models", "BREW", 0.2)
    buckets = {"handler": "/v1/models", "le": "0.25"}
    assert scrape.value("http_request_duration_seconds_bucket", method="GET", **buckets) == 1
    assert scrape.value("http_request_duration_seconds_bucket", method="OTHER", **buckets) == 1


def test_tenants_are_named_only_where_that_is_asked_for(scrape: Scrape) -> None:
    scrape.metrics.request_finished(record(tenant="acme"))
    assert not [labels for _, labels in scrape.samples() if "tenant=acme" in labels]
    named = Scrape(GatewayMetrics([MODEL], by_tenant=True))
    named.metrics.request_finished(record(tenant="acme"))
    named.metrics.request_finished(record(tenant='"} x', outcome="failed"))
    assert named.value("relevo:tenant_output_tokens_total", tenant="acme") == 3
    assert named.value("relevo:tenant_cached_tokens_total", tenant="acme") == 16
    assert named.value("relevo:tenant_requests_total", tenant='"} x', outcome="failed") == 1


def test_any_number_of_tenants_is_a_bounded_number_of_series() -> None:
    """Red when a client that makes up names makes the scrape grow without end."""
    named = Scrape(GatewayMetrics([MODEL], by_tenant=True))
    for number in range(MAX_TENANTS + 200):
        named.metrics.request_finished(record(tenant=f"t{number}"))
    seen = [labels for name, labels in named.samples() if name == "relevo:tenant_requests_total"]
    assert len(seen) == MAX_TENANTS + 1
    assert named.value("relevo:tenant_requests_total", tenant="other") == 200
    named.metrics.request_finished(record(tenant="t0"))
    assert named.value("relevo:tenant_requests_total", tenant="t0") == 2


GAPS_S = st.lists(st.one_of(st.floats(0.0, 20.0), st.sampled_from([0.001, 0.01, 0.1, 1.0])), max_size=40)


@given(GAPS_S)
def test_many_gaps_at_once_are_the_same_gaps_one_by_one(gaps_s: list[float]) -> None:
    """Red when prometheus_client counts in another way than what is told to it in one pass, bounds included."""
    both = [Histogram("gaps", "", ["model"], registry=CollectorRegistry(), buckets=(0.01, 0.1, 1.0)) for _ in range(2)]
    child = both[0].labels("m")
    for gap_s in gaps_s:
        child.observe(gap_s)
    observe_many(both[1].labels("m"), gaps_s)
    one, other = ({(s.name, s.labels.get("le")): s.value for s in each.collect()[0].samples} for each in both)
    assert {key: value for key, value in one.items() if not key[0].endswith(("_created", "_sum"))} == {
        key: value for key, value in other.items() if not key[0].endswith(("_created", "_sum"))
    }
    assert one["gaps_sum", None] == pytest.approx(other["gaps_sum", None]) if gaps_s else True
