"""The load generator against a scripted server: what is sent, counted and summed, never how long it took."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from fake_openai_server import TEMPLATE_TOKENS, FakeOpenAI, served
from hypothesis import given
from hypothesis import strategies as st

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_closed_loop, run_open_loop
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.bench.serve.report import report_load
from relevo.bench.serve.run import LoadTest, ServeOptions, TraceOptions
from relevo.client.sse import SSEParser
from relevo.core.errors import ModelNotFound, SettingsError, StartError, Unauthorized
from relevo.telemetry.latency import Slo
from relevo.telemetry.progress import SILENT
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.lengths import FixedLength, UniformLengths
from relevo.workload.traces.formats import TraceFormat

OPTIONS = ServeOptions(
    url="",
    model=None,
    endpoint=Endpoint.COMPLETIONS,
    api_key=None,
    seed=0,
    input_lengths=FixedLength(12),
    output_lengths=FixedLength(4),
    num_requests=6,
    duration_s=None,
    request_rate_per_s=1000.0,
    arrival=ArrivalKind.POISSON,
    burstiness=1.0,
    concurrency=None,
    trace=None,
    ignore_eos=True,
    temperature=0.0,
    num_warmup_requests=0,
    request_timeout_s=None,
)


async def load(fake: FakeOpenAI, **changes: object) -> LoadTest:
    async with served(fake) as url:
        test = LoadTest(replace(OPTIONS, url=url, **changes))  # type: ignore[arg-type]
        await test.run(SILENT)
    return test


@given(st.lists(st.text(alphabet="ab:\u00e9 ", max_size=8), min_size=1, max_size=6), st.integers(0, 2**32))
def test_events_survive_any_cut_of_the_byte_stream(payloads: list[str], seed: int) -> None:
    stream = b": comment\r\n" + b"".join(f"event: x\r\ndata: {p}\r\n\r\n".encode() for p in payloads)
    rng = random.Random(seed)
    parser, events = SSEParser(), []
    while stream:
        size = rng.randint(1, 7)
        events += parser.feed(stream[:size])
        stream = stream[size:]
    assert [event.text for event in events] == payloads


@pytest.mark.parametrize("endpoint", list(Endpoint))
async def test_every_token_is_counted_once(endpoint: Endpoint) -> None:
    """Red when the chat chunk that only names the role, or the chunk with only a finish_reason, counts as output."""
    fake = FakeOpenAI(num_cached_tokens=3)
    test = await load(fake, endpoint=endpoint)
    report = report_load(test.records)
    assert (report.num_completed, report.num_failed, report.num_unfinished) == (6, 0, 0)
    assert (report.num_input_tokens, report.num_output_tokens, report.num_cached_tokens) == (72, 24, 18)
    assert [len(record.chunk_at_ns) for record in test.records] == [4] * 6
    counts = {name: summary.count if summary else 0 for name, summary in report.latencies.items()}
    assert counts == {"client_ttft_s": 6, "itl_s": 18, "tpot_s": 6, "e2e_s": 6}
    assert report.finish_reasons == {"length": 6}


async def test_chat_prompts_are_exact_with_the_template_included() -> None:
    fake = FakeOpenAI()
    await load(fake, endpoint=Endpoint.CHAT, input_lengths=UniformLengths(8, 40))
    words = [len(body["messages"][0]["content"].split()) for body in fake.bodies]
    assert len(set(words)) > 1
    assert all(8 <= count + TEMPLATE_TOKENS <= 40 for count in words)
    assert {body["max_completion_tokens"] for body in fake.bodies} == {4}


async def test_chat_prompts_shorter_than_the_template_are_refused() -> None:
    with pytest.raises(SettingsError, match="too short"):
        await load(FakeOpenAI(), endpoint=Endpoint.CHAT, input_lengths=FixedLength(3))


async def test_completions_get_token_ids_of_the_model_and_no_shared_prefix() -> None:
    """Red when prompts repeat: a prefix cache would then make the server look fast."""
    fake = FakeOpenAI()
    await load(fake)
    prompts = [body["prompt"] for body in fake.bodies]
    assert all(isinstance(prompt, list) and len(prompt) == 12 for prompt in prompts)
    assert len({tuple(prompt[:4]) for prompt in prompts}) == len(prompts)
    assert all(body["ignore_eos"] and body["stream"] for body in fake.bodies)


async def test_same_seed_same_requests() -> None:
    one, two, other = FakeOpenAI(), FakeOpenAI(), FakeOpenAI()
    lengths = UniformLengths(2, 9)
    for fake, seed in ((one, 1), (two, 1), (other, 2)):
        await load(fake, seed=seed, input_lengths=lengths, concurrency=1, request_rate_per_s=None)
    assert one.bodies == two.bodies
    assert one.bodies != other.bodies


async def test_a_server_without_tokenize_gets_text_and_the_test_says_so() -> None:
    fake = FakeOpenAI(has_tokenize=False)
    test = await load(fake)
    assert not test.exact_lengths
    assert all(len(body["prompt"].split()) == 12 for body in fake.bodies)


async def test_open_loop_never_waits_for_an_answer() -> None:
    """The server answers nobody before all are there: with any limit on requests in flight this would hang."""
    fake = FakeOpenAI(hold_until_in_flight=150)
    test = await load(fake, num_requests=150, request_rate_per_s=5000.0)
    assert fake.max_in_flight == 150
    assert all(record.outcome is Outcome.COMPLETED for record in test.records)


async def test_closed_loop_keeps_its_concurrency() -> None:
    fake = FakeOpenAI(hold_until_in_flight=3)
    test = await load(fake, num_requests=10, request_rate_per_s=None, concurrency=3)
    assert fake.max_in_flight == 3
    assert report_load(test.records).num_completed == 10
    assert all(record.due_at_ns is None for record in test.records)


async def test_closed_loop_ends_by_time_alone() -> None:
    """Prompts are made ahead without an end here; red when the maker is not stopped with the load."""
    test = await load(FakeOpenAI(), num_requests=None, duration_s=0.2, request_rate_per_s=None, concurrency=2)
    report = report_load(test.records)
    assert report.num_completed == report.num_requests > 2


async def test_duration_cuts_the_arrivals_of_an_open_loop() -> None:
    arrival = {"arrival": ArrivalKind.CONSTANT, "request_rate_per_s": 100.0}
    test = await load(FakeOpenAI(), num_requests=None, duration_s=0.095, **arrival)
    assert len(test.records) == 10


async def test_failures_are_counted_by_kind_and_kept_out_of_the_latencies() -> None:
    fake = FakeOpenAI(statuses=[429, 503, 429])
    test = await load(fake)
    report = report_load(test.records)
    assert report.errors == {"http_429": 2, "http_503": 1}
    assert (report.num_completed, report.num_failed, report.num_output_tokens) == (3, 3, 12)
    assert report.latencies["client_ttft_s"] is not None
    assert report.latencies["client_ttft_s"].count == 3
    assert "scripted 429" in test.records[0].error_detail


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ({"end_stream_after": 2}, "truncated"),
        ({"reset_after": 2}, "disconnected"),
        ({"error_event_after": 2}, "stream_error"),
    ],
)
async def test_streams_that_break_are_failures(script: dict[str, int], kind: str) -> None:
    """Red when a stream that stops in the middle passes for a short answer."""
    test = await load(FakeOpenAI(**script), num_requests=1)  # type: ignore[arg-type]
    record = test.records[0]
    assert (record.outcome, record.error, len(record.chunk_at_ns)) == (Outcome.FAILED, kind, 2)


async def test_a_server_that_goes_away_is_a_connection_error() -> None:
    planned = PlannedRequest(prompt="a", num_input_tokens=1, max_tokens=1)
    record = ClientRecord(index=0, num_wanted_input_tokens=1, max_tokens=1)
    async with served(FakeOpenAI()) as url:
        pass
    async with OpenAIClient(url) as client:
        await client.stream(planned, record, model="m", endpoint=Endpoint.CHAT, extra={})
        with pytest.raises(StartError, match="cannot reach"):
            await client.pick_model(None)
    assert record.error == "connect"


async def test_requests_that_take_too_long_are_timeouts() -> None:
    test = await load(FakeOpenAI(hold_until_in_flight=99), num_requests=2, request_timeout_s=0.05)
    assert report_load(test.records).errors == {"timeout": 2}


async def test_chunks_of_several_tokens() -> None:
    """ITL is per chunk, tokens and TPOT are the server's: red when TPOT is divided by the number of chunks."""
    test = await load(FakeOpenAI(tokens_per_chunk=4), num_requests=1, output_lengths=FixedLength(12))
    record = test.records[0]
    times = record.times
    assert (len(record.chunk_at_ns), record.num_output_tokens) == (3, 12)
    assert times.e2e_s is not None
    assert times.ttft_s is not None
    assert record.tpot_s == pytest.approx((times.e2e_s - times.ttft_s) / 11)


async def test_without_usage_chunks_are_counted() -> None:
    test = await load(FakeOpenAI(send_usage=False))
    report = report_load(test.records)
    assert (report.num_input_tokens, report.num_output_tokens) == (72, 24)


async def test_wrong_key_and_wrong_model_are_one_sentence() -> None:
    async with served(FakeOpenAI(api_key="right")) as url:
        async with OpenAIClient(url, api_key="wrong") as client:
            with pytest.raises(Unauthorized, match="--api-key"):
                await client.pick_model(None)
        async with OpenAIClient(url, api_key="right") as client:
            assert await client.pick_model(None) == "fake-model"
            with pytest.raises(ModelNotFound, match="it serves fake-model"):
                await client.pick_model("other")


async def test_warm_up_is_not_measured_and_a_dead_server_ends_there() -> None:
    fake = FakeOpenAI()
    test = await load(fake, num_warmup_requests=2)
    assert (len(fake.bodies), len(test.records)) == (8, 6)
    with pytest.raises(StartError, match=r"http_500: .*scripted"):
        await load(FakeOpenAI(statuses=[500] * 9), num_warmup_requests=2)


async def test_an_interrupted_load_keeps_what_it_has() -> None:
    """Four answers arrive, the rest hangs until the test is cancelled."""
    fake = FakeOpenAI()
    async with served(fake) as url:
        test = LoadTest(replace(OPTIONS, url=url, num_requests=4))
        await test.run(SILENT)
        fake.enough.clear()
        fake.hold_until_in_flight, fake.hang = 3, True
        async with OpenAIClient(url) as client:

            async def send(planned: PlannedRequest, record: ClientRecord) -> None:
                await client.stream(planned, record, model="m", endpoint=Endpoint.COMPLETIONS, extra={})

            planned = [PlannedRequest(prompt="a", num_input_tokens=1, max_tokens=1)] * 3
            running = asyncio.create_task(run_open_loop(planned, send, test.records))
            await fake.enough.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    report = report_load(test.records)
    assert (report.num_requests, report.num_completed, report.num_failed, report.num_unfinished) == (7, 4, 0, 3)
    assert report.duration_s > 0


async def test_closed_loop_takes_each_request_once() -> None:
    """Several clients share one source; red when two of them enter the generator at once or an item is lost."""
    sent: list[int] = []

    async def source() -> object:
        for number in range(20):
            await asyncio.sleep(0)
            yield PlannedRequest(prompt="", num_input_tokens=number, max_tokens=1)

    async def send(planned: PlannedRequest, record: ClientRecord) -> None:
        await asyncio.sleep(0)
        sent.append(planned.num_input_tokens)

    records: list[ClientRecord] = []
    await run_closed_loop(source(), send, records, concurrency=4)  # type: ignore[arg-type]
    assert sorted(sent) == list(range(20))
    assert [record.index for record in records] == list(range(20))


async def test_traces_bring_lengths_times_and_shared_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 520, [1, 2]), (40, 600, [1, 3]), (80, 9000, [9])]
    path.write_text(
        "".join(
            f'{{"timestamp": {at}, "input_length": {n}, "output_length": 2, "hash_ids": {h}}}\n' for at, n, h in rows
        )
    )
    trace = TraceOptions(path=path, format=TraceFormat.MOONCAKE, speed=2.0, max_input_len=1000)
    fake = FakeOpenAI()
    test = await load(fake, trace=trace, num_requests=None, request_rate_per_s=None)
    first, second = (body["prompt"] for body in fake.bodies)
    assert (len(first), len(second)) == (520, 600)
    assert first[:512] == second[:512]
    assert first[512:] != second[512:520]
    due = [record.due_at_ns or 0 for record in test.records]
    assert due[1] - due[0] == 20_000_000


async def test_traces_without_times_need_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"conversation": 0, "turns": [[6, 2], [1, 1]]}\n')
    trace = TraceOptions(path=path)
    with pytest.raises(SettingsError, match="--request-rate or --concurrency"):
        await load(FakeOpenAI(), trace=trace, num_requests=None, request_rate_per_s=None)
    test = await load(FakeOpenAI(), trace=trace, num_requests=None, request_rate_per_s=None, concurrency=1)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in test.records] == [(6, 2), (9, 1)]


def test_goodput_counts_requests_that_met_every_limit() -> None:
    """Two seconds; one request is too slow at first, one in between, one failed, one is fine."""
    second = 10**9

    def record(chunks: list[float], error: str | None = None) -> ClientRecord:
        stamps = [second + round(at * second) for at in chunks]
        made = ClientRecord(index=0, num_wanted_input_tokens=1, max_tokens=3, sent_at_ns=second, chunk_at_ns=stamps)
        made.finished_at_ns, made.error, made.num_output_tokens = stamps[-1], error, len(stamps)
        return made

    records = [
        record([0.5, 0.6, 0.7]),
        record([1.5, 1.6, 1.7]),
        record([0.5, 0.6, 2.0]),
        record([0.5, 0.6, 0.7], "disconnected"),
    ]
    report = report_load(records, Slo(ttft_s=1.0, itl_s=0.2))
    assert report.duration_s == pytest.approx(2.0)
    assert report.goodput_per_s == pytest.approx(0.5)
    assert report.slo_met_fraction == pytest.approx(0.25)
    assert report_load(records, Slo(ttft_s=1.0)).goodput_per_s == pytest.approx(1.0)
    assert report_load(records).goodput_per_s is None


def test_nothing_at_all_is_a_report_too() -> None:
    report = report_load([], Slo(ttft_s=1.0))
    assert (report.num_requests, report.requests_per_s, report.goodput_per_s) == (0, 0.0, 0.0)
    assert set(report.latencies.values()) == {None}
