"""`relevo bench overload`: what counts as good, refused and recovered, and that every load is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served

from relevo.bench.overload.report import REJECTIONS, OverloadPhase, capacity_per_s, overload_table
from relevo.bench.overload.run import OverloadOptions, OverloadTest, resident_bytes
from relevo.bench.records import ClientRecord
from relevo.core.errors import SettingsError
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import SILENT
from relevo.workload.lengths import FixedLength

S = 1_000_000_000
SLO = Slo(ttft_s=1.0)


def record(at_s: float, *, ttft_s: float | None = 0.5, took_s: float = 0.6, error: str | None = None) -> ClientRecord:
    sent_at_ns = round(at_s * S)
    made = ClientRecord(index=0, num_wanted_input_tokens=1, max_tokens=1, due_at_ns=sent_at_ns, sent_at_ns=sent_at_ns)
    if error is not None:
        made.error, made.failed_at_ns = error, sent_at_ns + round(took_s * S)
    elif ttft_s is not None:
        made.chunk_at_ns, made.finished_at_ns = [sent_at_ns + round(ttft_s * S)], sent_at_ns + round(took_s * S)
    return made


def phase(*records: ClientRecord) -> OverloadPhase:
    return OverloadPhase(multiple=4.0, offered_per_s=8.0, duration_s=10.0, start_ns=0, records=list(records))


def test_good_is_in_time_and_within_the_window() -> None:
    report = phase(record(1.0), record(2.0, ttft_s=1.5, took_s=2.0), record(9.5), record(11.0)).report(SLO)
    assert report.goodput_per_s == pytest.approx(0.1), "one was late, one ended after the window, one came after it"
    assert (report.num_sent, report.num_completed) == (3, 3)
    assert report.slo_met_fraction == pytest.approx(2 / 3)


def test_refusals_are_timed_and_other_failures_are_errors() -> None:
    refused = [record(i / 10, error="http_429", took_s=0.01 * i) for i in range(1, 11)]
    report = phase(*refused, record(5.0, error="timeout"), record(6.0, error="http_504")).report(SLO)
    assert report.num_rejected == 10
    assert report.rejection_p99_s == pytest.approx(0.1, rel=0.02)
    assert report.errors == {"timeout": 1, "http_504": 1}


def test_recovery_is_the_last_bad_moment_after_the_load() -> None:
    assert phase(record(10.5), record(11.0)).report(SLO).recovery_s == 0.0
    bad = record(12.5, error="http_429")
    assert phase(record(10.5), bad, record(13.0)).report(SLO).recovery_s == pytest.approx(2.5)
    assert phase(record(10.5), bad).report(SLO).recovery_s is None, "it never was normal again"
    assert phase(record(1.0)).report(SLO).recovery_s is None, "nobody came to see it"


def after(later: list[ClientRecord], at_rest: list[ClientRecord]) -> tuple[float | None, float | None]:
    made = phase(*later)
    made.at_rest = at_rest
    report = made.report(SLO)
    return report.recovery_s, report.as_before_s


def test_what_follows_is_compared_with_the_same_requests_at_rest() -> None:
    """Red when a long prompt, or a load that is too much even at rest, counts as the overload's doing; or when service
    counts as normal as soon as nobody is refused."""
    at_rest = [record(0.0, ttft_s=0.2), record(1.0, ttft_s=0.8), record(2.0, error="http_429"), record(3.0)]
    same = [record(10.0, ttft_s=0.25), record(11.0, ttft_s=0.85), record(12.0, error="http_429"), record(13.0)]
    assert after(same, at_rest) == (0.0, 0.0)
    slower = [record(10.5, error="http_429"), record(11.0, ttft_s=0.95), *same[2:]]
    assert after(slower, at_rest) == (0.5, 1.0)
    refused = [*same[:3], record(13.0, error="http_429")]
    assert after(refused, at_rest) == (None, None)
    assert after(same[:2], at_rest) == (None, None), "it was interrupted"


def test_capacity_is_not_fooled_by_a_cohort() -> None:
    """Clients that begin together end together, after the window: a reading of the window alone says zero."""
    cohort = [record(0.0, took_s=20.0) for _ in range(40)]
    assert capacity_per_s(cohort, 0, 10.0) == pytest.approx(2.0)
    assert capacity_per_s([], 0, 10.0) == 0.0


def options(url: str, **changes: object) -> OverloadOptions:
    asked: dict[str, object] = {
        "url": url,
        "input_lengths": FixedLength(8),
        "output_lengths": FixedLength(2),
        "multiples": (1.0, 3.0),
        "duration_s": 0.2,
        "recovery_s": 0.1,
        "capacity_per_s": 50.0,
        "slo": Slo(ttft_s=30.0),
    }
    return OverloadOptions(**(asked | changes))  # type: ignore[arg-type]


async def test_each_load_is_sent_and_reported() -> None:
    fake = FakeOpenAI(statuses=[429, 503])
    async with served(fake) as url:
        test = OverloadTest(options(url, tell_slo=True))
        await test.run(SILENT)
    reports = [each.report(test.options.slo) for each in test.phases]
    assert [report.multiple for report in reports] == [1.0, 3.0]
    assert sum(each.error in REJECTIONS for each in test.phases[0].at_rest) == 2
    assert all(report.num_unfinished == 0 for report in reports)
    assert len(fake.bodies) == sum(len(each.records) + len(each.at_rest) for each in test.phases)
    assert all(each.at_rest and each.report(test.options.slo).as_before_s is not None for each in test.phases)
    assert overload_table(reports).row_count == 2


async def test_the_capacity_is_measured_when_it_is_not_given() -> None:
    async with served(FakeOpenAI()) as url:
        test = OverloadTest(options(url, capacity_per_s=None, capacity_clients=2, capacity_s=0.1, multiples=(0.1,)))
        await test.run(SILENT)
    assert test.capacity_per_s > 0.0


async def test_wishes_without_sense_are_refused_before_anything_is_sent() -> None:
    for changes in ({"multiples": ()}, {"multiples": (0.0,)}, {"slo": Slo()}):
        with pytest.raises(SettingsError):
            await OverloadTest(options("http://127.0.0.1:1", **changes)).run(SILENT)


def test_memory_of_processes_that_are_gone_is_left_out() -> None:
    own = int(Path("/proc/self").resolve().name)
    assert list(resident_bytes((own, 2**22 + 1))) == [own]
    assert resident_bytes((own,))[own] > 2**20
