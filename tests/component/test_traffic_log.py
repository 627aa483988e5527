"""What a gateway keeps of the requests that it served: real chains, no text, bounded files, and no wait for a disk."""

from __future__ import annotations

import json
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from in_process_stack import BLOCK_SIZE, in_process_stack, request_for, until

from relevo.build.clock import MonotonicClock
from relevo.build.traffic_key import check_traffic_bytes, traffic_key
from relevo.core.errors import SettingsError, StartError
from relevo.core.ids import RequestId
from relevo.planner.traffic_log import LEAST_BYTES, PATTERN, TrafficLog
from relevo.planner.traffic_recorder import TrafficRecorder
from relevo.telemetry.latency import RequestRecord, RequestTimes
from relevo.workload.traces.served import ServedRequest, served_row

S = 1_000_000_000


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(PATTERN)) for line in path.read_text().splitlines()]


def record(request_id: str, num_prompt: int, num_output: int, tenant: str = "") -> RequestRecord:
    now_ns = MonotonicClock().now_ns()
    return RequestRecord(
        request_id=RequestId(request_id),
        model="m",
        times=RequestTimes(now_ns - S, [now_ns - S // 2 + i * S // 100 for i in range(num_output)], now_ns),
        num_prompt_tokens=num_prompt,
        num_cached_tokens=16,
        num_output_tokens=num_output,
        num_longest_output_tokens=num_output,
        n=1,
        max_tokens=num_output,
        finish_reason="length",
        outcome="finished",
        tenant=tenant,
    )


async def served(tmp_path: Path, key: bytes, tenant: str = "") -> tuple[list[ServedRequest], list[int]]:
    """Two turns of a chat and another prompt, through a real dispatcher; and how many tokens of each were cached."""
    kept = TrafficLog(tmp_path, LEAST_BYTES)
    recorder = TrafficRecorder(
        model="m", block_size=BLOCK_SIZE, key=key, put=kept.put, clock=MonotonicClock(), unix_s=time.time
    )
    first = list(range(1, 14))
    async with in_process_stack({"unified-0": "unified"}, num_gateways=1) as stack:
        gateway = stack.gateways[0]
        gateway.dispatcher._on_ended = recorder.ended
        answer, _ = await gateway.tokens(request_for(0, first, 9))
        prompts = [first, [*first, *answer, 3, 4, 5], [9, *first]]
        outputs, cached = [answer], [0]
        for number in (1, 2):
            output, num_cached = await gateway.tokens(request_for(number, prompts[number], 6))
            outputs.append(output)
            cached.append(num_cached)
        await until(lambda: len(recorder._ended) == 3)
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            recorder.finished(record(request_for(number, prompt, 1).request_id, len(prompt), len(output), tenant))
    kept.close(5.0)
    found = [served_row(row) for row in rows_in(tmp_path)]
    assert all(isinstance(row, ServedRequest) for row in found)
    return [row for row in found if isinstance(row, ServedRequest)], cached


async def test_chains_of_prompt_and_answer_are_what_the_caches_have(tmp_path: Path) -> None:
    """Red when the next turn does not begin with the whole chain of the one before, or a block too many is named."""
    (first, turn, other), cached = await served(tmp_path / "a", b"k" * 32)
    assert len(first.chain) == (13 + 9 - 1) // BLOCK_SIZE and len(turn.chain) == (13 + 9 + 3 + 6 - 1) // BLOCK_SIZE
    assert cached == [0, len(first.chain) * BLOCK_SIZE, 0], "what the chain promises is what was found"
    assert list(turn.chain)[: len(first.chain)] == list(first.chain)
    assert not set(other.chain) & set(first.chain), "one token in front, and no block is the same"
    assert first.ttft_s == pytest.approx(0.5) and first.e2e_s == pytest.approx(1.0) and first.itl_p90_s is not None
    assert abs(first.at_s - (time.time() - 1.0)) < 5.0


async def test_who_gets_a_file_can_try_neither_texts_nor_names_against_it(tmp_path: Path) -> None:
    """Red when a hash needs no key, or a name is in the file."""
    mine, _ = await served(tmp_path / "a", b"k" * 32, tenant="team-a")
    theirs, _ = await served(tmp_path / "b", b"j" * 32, tenant="team-a")
    assert not {block for row in mine for block in row.chain} & {block for row in theirs for block in row.chain}
    assert {row.tenant for row in mine}.isdisjoint({row.tenant for row in theirs}) and len(
        {r.tenant for r in mine}
    ) == 1
    (path,) = (tmp_path / "a").glob(PATTERN)
    assert "team-a" not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_request_that_was_turned_away_leaves_nothing(tmp_path: Path) -> None:
    put: list[object] = []
    recorder = TrafficRecorder(
        model="m", block_size=4, key=b"k" * 32, put=put.append, clock=MonotonicClock(), unix_s=time.time
    )
    recorder.finished(record("never let in", 3, 0))
    assert not put and recorder.num_requests == 0


def test_files_are_bounded_together_and_the_oldest_goes(tmp_path: Path) -> None:
    clock_s = iter(range(10**6))
    kept = TrafficLog(tmp_path, LEAST_BYTES, unix_s=lambda: float(next(clock_s)))
    for number in range(3000):
        while kept._waiting.qsize() > 1000:
            time.sleep(0.001)
        kept.put(lambda number=number: {"number": number, "filler": "x" * 700})
    kept.close(10.0)
    assert sum(path.stat().st_size for path in tmp_path.glob(PATTERN)) <= LEAST_BYTES and kept.num_lost == 0
    numbers = [row["number"] for row in rows_in(tmp_path)]
    assert numbers == list(range(numbers[0], 3000)) and 1000 < len(numbers) < 1500


def test_a_folder_that_cannot_be_written_costs_rows_and_nothing_else(tmp_path: Path) -> None:
    """Red when a request waits for the disk, or the thread dies of it."""
    (tmp_path / "file").write_text("")
    kept = TrafficLog(tmp_path / "file" / "folder", LEAST_BYTES)
    kept.put(lambda: {"a": 1})
    kept.put(lambda: {"b": 1})
    kept.close(5.0)
    assert kept.num_lost == 2 and not kept._thread.is_alive()  # type: ignore[union-attr]


def test_what_cannot_wait_is_lost_and_counted(tmp_path: Path) -> None:
    stuck = threading.Event()
    kept = TrafficLog(tmp_path, LEAST_BYTES)
    kept.put(lambda: {"waited": stuck.wait(10.0)})
    started = time.monotonic()
    for _ in range(2100):
        kept.put(dict)
    assert time.monotonic() - started < 5.0 and 90 <= kept.num_lost <= 110
    stuck.set()
    kept.close(10.0)
    assert len(rows_in(tmp_path)) == 2101 - kept.num_lost


def test_a_file_that_is_taken_away_is_written_anew(tmp_path: Path) -> None:
    kept = TrafficLog(tmp_path, LEAST_BYTES)
    kept.put(lambda: {"a": 1})
    while not list(tmp_path.glob(PATTERN)):
        time.sleep(0.001)
    for path in tmp_path.glob(PATTERN):
        path.unlink()
    while kept._file is not None:
        time.sleep(0.01)
    kept.put(lambda: {"b": 1})
    kept.close(5.0)
    assert rows_in(tmp_path) == [{"b": 1}]


def test_the_key_of_a_folder_is_drawn_once_and_kept_from_others(tmp_path: Path) -> None:
    folder = tmp_path / "traffic"
    key = traffic_key(folder)
    assert len(bytes.fromhex(key)) == 32 and traffic_key(folder) == key != traffic_key(tmp_path / "other")
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "key").write_text("short")
    with pytest.raises(StartError, match="holds no key"):
        traffic_key(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"cannot be kept in .*choose another --data-dir"):
        traffic_key(tmp_path / "file" / "traffic")


def test_what_cannot_be_kept_is_refused_at_the_start() -> None:
    check_traffic_bytes(0, "memory")
    with pytest.raises(SettingsError, match="--database-url memory keeps nothing"):
        check_traffic_bytes(LEAST_BYTES, "memory")
    with pytest.raises(SettingsError, match=f"give at least {LEAST_BYTES}"):
        check_traffic_bytes(1, "/a/relevo.db")
