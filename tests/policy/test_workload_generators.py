"""Arrivals, lengths, trace readers and prompts: means, bounds, formats and exact token counts."""

from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.workload.arrivals import ArrivalKind, arrival_offsets, arrivals_until
from relevo.workload.lengths import EmpiricalLengths, FixedLength, LognormalLengths, UniformLengths, parse_lengths
from relevo.workload.prompts import hashed_run, random_token_ids, text_of_length
from relevo.workload.traces import TraceFormat, read_trace, spread_ticks


def gaps(kind: ArrivalKind, rate: float, burstiness: float = 1.0) -> list[float]:
    offsets = list(islice(arrival_offsets(kind, rate, random.Random(7), burstiness=burstiness), 20_001))
    assert offsets[0] == 0.0
    return [later - earlier for earlier, later in pairwise(offsets)]


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"),
    [
        (ArrivalKind.CONSTANT, 1.0, 0.0),
        (ArrivalKind.POISSON, 1.0, 1.0),
        (ArrivalKind.POISSON, 9.0, 1.0),
        (ArrivalKind.GAMMA, 1.0, 1.0),
        (ArrivalKind.GAMMA, 0.25, 2.0),
        (ArrivalKind.GAMMA, 4.0, 0.5),
    ],
)
def test_rate_and_burstiness_are_what_was_asked_for(kind: ArrivalKind, burstiness: float, variation: float) -> None:
    """Red when shape and scale of the gamma gaps are swapped, or the rate is taken for a gap."""
    measured = gaps(kind, 4.0, burstiness)
    mean = statistics.fmean(measured)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(measured) / mean == pytest.approx(variation, rel=0.05, abs=1e-6)


def test_arrivals_are_reproducible_and_bounded() -> None:
    one = arrivals_until(arrival_offsets(ArrivalKind.POISSON, 10.0, random.Random(1)), 5.0)
    two = arrivals_until(arrival_offsets(ArrivalKind.POISSON, 10.0, random.Random(1)), 5.0)
    assert one == two
    assert max(one) < 5.0
    assert arrivals_until(arrival_offsets(ArrivalKind.CONSTANT, 2.0, random.Random(1)), 1.5) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_impossible_arrivals_are_refused_at_once(rate: float, burstiness: float) -> None:
    """Red when the check moves into the generator body, where it would only be met at the first request."""
    with pytest.raises(ValueError, match="above 0"):
        arrival_offsets(ArrivalKind.GAMMA, rate, random.Random(0), burstiness=burstiness)


def test_lengths_are_read_as_typed() -> None:
    assert parse_lengths("512") == FixedLength(512)
    assert parse_lengths("16-32") == UniformLengths(16, 32)
    assert parse_lengths("lognormal:600,2") == LognormalLengths(600.0, 2.0)


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "abc", "8-4", "0-4", "1.5", "lognormal:", "lognormal:0,2", "lognormal:9"]
)
def test_bad_lengths_say_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="lognormal:600"):
        parse_lengths(text)


def test_lengths_stay_in_their_range() -> None:
    rng = random.Random(3)
    drawn = {UniformLengths(3, 6).draw(rng) for _ in range(300)}
    assert drawn == {3, 4, 5, 6}
    tail = sorted(LognormalLengths(100.0, 2.0).draw(rng) for _ in range(4001))
    assert tail[0] >= 1
    assert tail[2000] == pytest.approx(100, rel=0.1)
    assert tail[int(4001 * 0.8413)] == pytest.approx(200, rel=0.1)
    assert {EmpiricalLengths([5, 9]).draw(rng) for _ in range(50)} == {5, 9}


def test_mooncake_rows() -> None:
    lines = [
        '{"timestamp": 9000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n',
        "\n",
        '{"timestamp": 6000, "input_length": 100, "output_length": 2, "hash_ids": [0], "session_id": "s"}\n',
    ]
    first, second = read_trace(TraceFormat.MOONCAKE, lines)
    assert (first.arrived_at_s, first.num_input_tokens, first.session_id) == (0.0, 100, "s")
    assert (second.arrived_at_s, second.num_output_tokens, second.hash_ids) == (3.0, 5, (0, 7))


def test_azure_rows_keep_seven_decimals() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "2023-11-16 18:15:46.6805900,374,44\n",
        "2023-11-16 18:15:50.9951690,396,109\n",
    ]
    first, second = read_trace(TraceFormat.AZURE, lines)
    assert (first.arrived_at_s, first.num_input_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert second.arrived_at_s == pytest.approx(4.314579, abs=1e-5)


def test_sharegpt_turns_carry_their_history() -> None:
    requests = read_trace(TraceFormat.SHAREGPT, ['{"conversation": 4, "turns": [[10, 20], [5, 7]]}'])
    assert [(r.num_input_tokens, r.num_output_tokens, r.arrived_at_s) for r in requests] == [
        (10, 20, None),
        (35, 7, None),
    ]
    assert {r.session_id for r in requests} == {"4"}


@pytest.mark.parametrize(
    ("trace_format", "lines", "message"),
    [
        (TraceFormat.MOONCAKE, ["{}"], "line 1 is not a mooncake request"),
        (TraceFormat.MOONCAKE, ["", "[1]"], "line 2 is not a mooncake request"),
        (TraceFormat.AZURE, ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"], "line 2 is not a azure"),
        (TraceFormat.SHAREGPT, ['{"turns": [[1]]}'], "line 1 is not a sharegpt request"),
        (TraceFormat.AZURE, [], "no requests"),
    ],
)
def test_unreadable_traces_name_the_line(trace_format: TraceFormat, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(trace_format, lines)


def test_ticks_are_spread_inside_themselves() -> None:
    """Red when a request can leave its tick, or when the load of a tick changes."""
    lines = [f'{{"timestamp": {3000 * (i // 4)}, "input_length": 9, "output_length": 1}}' for i in range(40)]
    spread = spread_ticks(read_trace(TraceFormat.MOONCAKE, lines), random.Random(5))
    times = [request.arrived_at_s or 0.0 for request in spread]
    assert times == sorted(times)
    assert len(set(times)) == 40
    assert [sum(1 for t in times if t // 3.0 == tick) for tick in range(10)] == [4] * 10


def test_one_odd_gap_does_not_shrink_the_tick() -> None:
    """Red when the tick is taken from the smallest gap: a trace with one stray stamp would stay in batches."""
    stamps = [0, 3000, 6000, 9000, 9001]
    lines = [f'{{"timestamp": {t}, "input_length": 9, "output_length": 1}}' for t in stamps for _ in range(20)]
    spread = spread_ticks(read_trace(TraceFormat.MOONCAKE, lines), random.Random(5))
    assert max(r.arrived_at_s or 0.0 for r in spread[:20]) > 1.0


def test_hash_ids_decide_the_shared_prefix() -> None:
    vocabulary = range(100, 1000)
    one = hashed_run(20, [1, 2, 3], 8, vocabulary, seed=0)
    two = hashed_run(24, [1, 2, 4], 8, vocabulary, seed=0)
    other = hashed_run(20, [1, 2, 3], 8, vocabulary, seed=1)
    assert (len(one), len(two)) == (20, 24)
    assert one[:16] == two[:16]
    assert one[16:] != two[16:20]
    assert other != one
    assert len(hashed_run(30, [5], 8, vocabulary, seed=0)) == 30


def test_random_ids_come_from_the_vocabulary() -> None:
    assert set(random_token_ids(200, [3, 5, 8], random.Random(1))) == {3, 5, 8}


@given(st.integers(1, 300), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2**32))
def test_text_has_the_exact_length_where_one_exists(wish: int, overhead: int, long_cost: int, seed: int) -> None:
    """A counter with a template overhead and words of several tokens; one-token words make every length possible."""

    def count(text: str) -> int:
        return overhead + sum(long_cost if len(word) > 6 else 1 for word in text.split())

    fitted = text_of_length(wish, count, random.Random(seed))
    assert fitted.num_tokens == count(fitted.text)
    if wish > overhead:
        assert fitted.num_tokens == wish
    else:
        assert fitted.num_tokens - overhead <= long_cost
