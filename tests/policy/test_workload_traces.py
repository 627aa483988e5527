"""Readers of traces: every format from a few lines of its own, wrong lines, recognition by content, times and loops."""

from __future__ import annotations

import gzip
import io
import json
import os
import statistics
import tarfile
import zlib
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from relevo.core.errors import SettingsError
from relevo.workload.arrivals import ArrivalKind
from relevo.workload.requests import Workload, WorkloadRequest
from relevo.workload.timing import Loop, Timing, spread_ticks, tick_s, time_workload
from relevo.workload.traces import files
from relevo.workload.traces.files import ReadOptions, read_trace_file
from relevo.workload.traces.formats import TraceFormat

MOONCAKE = """{"timestamp": 9000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}

{"timestamp": 6000, "input_length": 100, "output_length": 0, "hash_ids": [0]}
"""
MOONCAKE_SESSIONS = """{"session_id": "a", "timestamp": 2000, "input_length": 100, "output_length": 5}
{"session_id": "b", "timestamp": 3000, "input_length": 30, "output_length": 1}
{"session_id": "a", "delay": 1500, "input_length": 200, "output_length": 5}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,API log
118,ChatGPT,417,0,417,Conversation log
"""
BAILIAN = """{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 33, "output_length": 9, \
"type": "text", "turn": 1, "hash_ids": [3, 4, 5]}
{"chat_id": 7, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 16, "output_length": 9, "type": "file", \
"turn": 1, "hash_ids": [9]}
{"chat_id": 8, "parent_chat_id": 1, "timestamp": 4.0, "input_length": 60, "output_length": 9, "type": "text", \
"turn": 2, "hash_ids": [3, 4, 6, 7]}
"""
AGENTS = """{"session_id": "s", "turn": 0, "timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [0, 1]}
{"session_id": "t", "turn": 0, "timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [0, 5]}
{"session_id": "s", "turn": 1, "timestamp": 2500, "input_length": 64, "output_length": 3, "hash_ids": [0, 1, 2, 3]}
"""
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n"
SHAREGPT = '{"conversation": 4, "turns": [[20, 30], [5, 7]]}\n{"conversation": 9, "turns": [[2, 1]]}\n'
LLMSERVINGSIM = (
    json.dumps({"input_toks": 40, "output_toks": 4, "arrival_time_ns": 10**9, "input_tok_ids": list(range(40))})
    + "\n"
    + json.dumps({"input_toks": 40, "output_toks": 4, "arrival_time_ns": 3 * 10**9, "input_tok_ids": [*range(20)] * 2})
)


def agent_text(session_id: str, at_s: int, prompt: str) -> str:
    return json.dumps({"session_id": session_id, "timestamp": at_s * 10**6, "input": prompt, "output": "o" * 12}) + "\n"


def read(tmp_path: Path, text: str, **options: object) -> Workload:
    path = tmp_path / "trace"
    path.write_text(text)
    return read_trace_file(path, ReadOptions(**options))  # type: ignore[arg-type]


def facts(workload: Workload) -> list[tuple[float | None, int, int]]:
    return [(r.arrived_at_s, r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests]


def test_mooncake(tmp_path: Path) -> None:
    workload = read(tmp_path, MOONCAKE)
    assert facts(workload) == [(0.0, 100, 1), (3.0, 600, 5)]
    assert [list(r.hash_ids) for r in workload.requests] == [[0], [0, 7]]
    assert workload.hash_block_size == 512
    assert workload.notes == ("1 requests without an output token are taken to have one",)


def test_mooncake_rows_of_a_session_wait_for_the_answer_before(tmp_path: Path) -> None:
    """Red when a delay is taken for a time, or for a pause after the file's previous row."""
    a, a2, b = read(tmp_path, MOONCAKE_SESSIONS).requests
    assert (a.arrived_at_s, b.arrived_at_s, a2.arrived_at_s) == (0.0, 1.0, None)
    assert (a2.parent, a2.gap_s, a2.turn, a2.session_id) == (a.row, 1.5, 1, "a")


def test_azure_keeps_seven_decimals(tmp_path: Path) -> None:
    first, second = read(tmp_path, AZURE).requests
    assert (first.arrived_at_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert second.arrived_at_s == pytest.approx(4.314579, abs=1e-5)
    later = read(tmp_path, AZURE.replace("6805900,", "6805900+00:00,").replace("9951690,", "9951690+00:00,"))
    assert [r.arrived_at_s for r in later.requests] == [0.0, second.arrived_at_s]


def test_burstgpt_leaves_failed_requests_out_and_says_so(tmp_path: Path) -> None:
    workload = read(tmp_path, BURSTGPT)
    assert facts(workload) == [(0.0, 472, 18), (40.0, 1087, 230)]
    assert [r.client for r in workload.requests] == ["ChatGPT", "GPT-4"]
    assert workload.notes == ("1 failed requests (no response tokens) are left out",)


def test_bailian_names_the_answer_that_a_turn_goes_on_from(tmp_path: Path) -> None:
    first, other, second = read(tmp_path, BAILIAN).requests
    assert (second.parent, second.session_id, second.turn) == (first.row, first.session_id, 1)
    assert (other.parent, other.client, other.session_id) == (None, "file", "7")
    assert list(second.hash_ids) == [3, 4, 6, 7]
    assert (second.gap_s, second.arrived_at_s, second.hash_block_size) == (None, 2.5, 16)


def test_agents_wait_for_their_answers(tmp_path: Path) -> None:
    workload = read(tmp_path, AGENTS)
    assert workload.is_closed_loop
    s, t, s2 = workload.requests
    assert (s.gap_s, t.gap_s, s2.gap_s, s2.parent) == (None, None, 2.5, s.row)


def test_the_text_of_agents_becomes_a_chain_of_ids(tmp_path: Path) -> None:
    """Red when equal text at another place counts as the same content."""
    block, other = "a" * 64, "b" * 64
    text = agent_text("s", 10, block + other) + agent_text("s", 12, block + other + block + "tail")
    first, second = read(tmp_path, text).requests
    assert (first.num_prompt_tokens, second.num_prompt_tokens, second.num_output_tokens) == (32, 49, 3)
    assert list(second.hash_ids[:2]) == list(first.hash_ids)
    assert second.hash_ids[2] not in first.hash_ids
    assert second.gap_s == 2.0


def test_length_lists_have_no_times(tmp_path: Path) -> None:
    assert facts(read(tmp_path, VIDUR)) == [(None, 3772, 54)]
    workload = read(tmp_path, SHAREGPT)
    assert facts(workload) == [(None, 20, 30), (None, 55, 7), (None, 2, 1)]
    first, second, other = workload.requests
    assert (second.parent, second.gap_s) == (first.row, 0.0)
    assert list(second.hash_ids[:1]) == list(first.hash_ids)
    assert len(second.hash_ids) == 3  # whole blocks of 16
    assert not set(other.hash_ids) & set(second.hash_ids)


def test_recorded_token_ids_tell_what_is_shared(tmp_path: Path) -> None:
    first, second = read(tmp_path, LLMSERVINGSIM).requests
    assert (first.arrived_at_s, second.arrived_at_s) == (0.0, 2.0)
    assert first.hash_ids[0] == second.hash_ids[0]
    assert first.hash_ids[1] != second.hash_ids[1]


def test_distributions_are_drawn_as_the_seed_says(tmp_path: Path) -> None:
    text = json.dumps({"cdf": [[100, 0.5], [1000, 1.0]]}, indent=1)
    workload = read(tmp_path, text, limit=400, output_fraction=0.25)
    assert len(workload.requests) == 400
    totals = [r.num_prompt_tokens + r.num_output_tokens for r in workload.requests]
    assert statistics.fmean(totals) == pytest.approx(300, rel=0.15)
    assert sum(r.num_output_tokens for r in workload.requests) == pytest.approx(sum(totals) / 4, rel=0.02)
    assert read(tmp_path, text, limit=400, output_fraction=0.25) == workload
    assert read(tmp_path, text, limit=400, output_fraction=0.25, seed=1) != workload
    assert "25%" in workload.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("nonsense\n", 1, "no known format"),
        ("", 1, "no known format"),
        ('{"a": 1}\n', 1, "no known format"),
        (MOONCAKE + "[1]\n", 4, r"\[1\] is no JSON object"),
        (MOONCAKE + '{"timestamp": 1, "input', 4, "not JSON"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 5}', 4, "output_length is missing"),
        (
            MOONCAKE + '{"timestamp": -1, "input_length": 5, "output_length": 1}',
            4,
            "timestamp is -1; expected a number",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 0, "output_length": 1}',
            4,
            "input_length is 0; expected at least 1",
        ),
        (MOONCAKE + '{"timestamp": 1, "input_length": 2.5, "output_length": 1}', 4, "2.5; expected a whole number"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}',
            4,
            "2 hash ids for 5 prompt tokens; expected at most 1, one for every 512 tokens",
        ),
        (MOONCAKE + '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}', 4, "hash_ids is"),
        (
            MOONCAKE_SESSIONS + '{"session_id": "c", "delay": 1, "input_length": 5, "output_length": 1}',
            4,
            "delay without",
        ),
        (AZURE + "yesterday,1,2\n", 4, "TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:15:46.6,x,2\n", 4, "ContextTokens is 'x'"),
        (BURSTGPT + "5,ChatGPT,472\n", 5, "Response tokens is missing"),
        (AZURE + "\n\n2023-11-16 18:15:46.6,x,2\n", 6, "ContextTokens is 'x'"),
        (AZURE[:-1] + ',"' + "x" * 200_000, 2, "not CSV"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens," + "x" * 200_000, 1, "not CSV"),
        (MOONCAKE + '{"timestamp": 1%s, "input_length": 5, "output_length": 1}' % ("0" * 400), 4, "expected a number"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 1%s, "output_length": 1}' % ("0" * 400), 4, "expected at most"),
        (
            '{"input_toks": 16, "output_toks": 1, "arrival_time": 1, "input_tok_ids": [%s[1]]}' % ("[1]," * 15),
            1,
            "token",
        ),
        ('{"turns": [[1]]}\n', 1, "turns is"),
        ('{"turns": [[Infinity, 1]]}\n', 1, "turns is"),
        ('{"turns": [[1000000000000, 1]]}\n', 1, "expected at most 16,777,216 tokens together"),
        ("[[Infinity, 1]]", 1, "no distribution"),
        ("[[5, NaN], [6, 1]]", 1, "expected ascending"),
        ("[[5, 0.2]]", 1, "expected ascending tokens and fractions, the last one 1"),
    ],
)
def test_a_wrong_line_is_named_with_what_was_expected(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(SettingsError, match=rf"trace:{line}: .*{problem}"):
        read(tmp_path, text)


def test_a_format_that_is_given_is_used(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"trace:1: the header has no column 'TIMESTAMP'"):
        read(tmp_path, MOONCAKE, format=TraceFormat.AZURE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the trace .*gone"):
        read_trace_file(tmp_path / "gone")
    (tmp_path / "trace").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SettingsError, match="is no text"):
        read_trace_file(tmp_path / "trace")
    with pytest.raises(SettingsError, match="no requests"):
        read(tmp_path, AZURE, skip=2)


def test_gzip_is_read_as_it_is(tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert facts(read_trace_file(packed)) == facts(read(tmp_path, MOONCAKE))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(SettingsError, match="cannot read the trace"):
        read_trace_file(packed)


def test_files_as_spreadsheets_and_pipes_give_them(tmp_path: Path) -> None:
    """Red when a byte order mark is taken for content, or what was read to tell a format is read again."""
    assert facts(read(tmp_path, "\ufeff" + AZURE)) == facts(read(tmp_path, AZURE))
    assert facts(read(tmp_path, "\ufeff" + MOONCAKE)) == facts(read(tmp_path, MOONCAKE))
    for content in (MOONCAKE.encode(), gzip.compress(MOONCAKE.encode())):
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        assert facts(read_trace_file(Path(f"/dev/fd/{reading}"))) == facts(read(tmp_path, MOONCAKE))
        os.close(reading)


def test_half_of_a_surrogate_pair_is_text(tmp_path: Path) -> None:
    (request,) = read(tmp_path, agent_text("a", 0, "\ud83d" + "x" * 97)).requests
    assert request.num_prompt_tokens == 25


@pytest.mark.parametrize(
    ("limit", "content", "problem"),
    [
        ("MAX_LINE_CHARS", MOONCAKE, "trace:1: more than 50 characters; expected one request a line"),
        ("MAX_LINE_CHARS", "[\n" * 60, "trace:26: a distribution of more than 50 characters"),
        ("MAX_REQUESTS", '{"turns": [[1, 1]]}\n' * 51, "more than 50 requests; read a part of them"),
    ],
)
def test_files_are_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, content: str, problem: str
) -> None:
    """What never ends, or unpacks to much more than it was, is refused. Red when it is read into memory instead."""
    monkeypatch.setattr(files, limit, 50)
    (tmp_path / "trace").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(SettingsError, match=problem):
        read_trace_file(tmp_path / "trace")


def test_skipped_turns_take_what_waits_for_them_along(tmp_path: Path) -> None:
    workload = read(tmp_path, MOONCAKE_SESSIONS, skip=1)
    assert [r.session_id for r in workload.requests] == ["b"]
    assert workload.notes == ("1 requests are left out with the turns before them",)
    later = read(tmp_path, AGENTS, skip=1)
    assert [(r.parent, r.gap_s, r.arrived_at_s) for r in later.requests] == [(None, None, 0.0), (None, None, 2.5)]


# --- ServeGen


def servegen_files(rate: float) -> dict[str, str]:
    dataset = {"0": {"input_tokens": "{50: 0.5, 60: 0.5}", "output_tokens": "{7: 1.0}"}}
    later = {"21600": {"input_tokens": "{}", "output_tokens": "{}"}}
    rates = f"0,{rate},2.0,Gamma,0.25,3.0\n600,0,0,,0,0\n1200,{rate / 2},1.0,Weibull,1.0,3.0\n"
    return {
        "data/reason/r1/chunk-0-trace.csv": rates,
        "data/reason/r1/chunk-0-dataset.json": json.dumps(dataset | later),
        "data/reason/r1/chunk-1-trace.csv": "0,0,0,,0,0\n",
        "data/reason/r1/chunk-1-dataset.json": json.dumps(dataset),
    }


def servegen_folder(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / "servegen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "servegen"


def test_servegen_keeps_rates_and_lengths(tmp_path: Path) -> None:
    """Red when a window's rate is lost in its bursts, or a window without requests gets some."""
    folder = servegen_folder(tmp_path, servegen_files(2.0))
    workload = read_trace_file(folder, ReadOptions(duration_s=1800))
    times = [r.arrived_at_s or 0.0 for r in workload.requests]
    assert times == sorted(times)
    counts = [sum(1 for t in times if low <= t < low + 600) for low in (0, 600, 1200)]
    assert counts == [pytest.approx(1200, abs=1), 0, pytest.approx(600, abs=1)]
    assert {r.num_prompt_tokens for r in workload.requests} == {50, 60}
    assert {(r.num_output_tokens, r.client) for r in workload.requests} == {(7, "chunk-0")}
    gaps = [later - earlier for earlier, later in pairwise(t for t in times if t < 600)]
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(2.0, rel=0.15)


def test_servegen_archives_equal_their_folders(tmp_path: Path) -> None:
    files = servegen_files(0.5)
    archive = tmp_path / "servegen.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    options = ReadOptions(duration_s=1800, seed=3)
    assert read_trace_file(archive, options) == read_trace_file(servegen_folder(tmp_path, files), options)
    assert read_trace_file(archive, options) != read_trace_file(archive, ReadOptions(duration_s=1800, seed=4))


def test_servegen_parts_must_be_chosen(tmp_path: Path) -> None:
    files = servegen_files(1.0)
    folder = servegen_folder(tmp_path, files | {n.replace("reason/r1", "language/m"): t for n, t in files.items()})
    with pytest.raises(SettingsError, match=r"holds language/m, reason/r1; choose one of them with --trace-part"):
        read_trace_file(folder)
    assert read_trace_file(folder, ReadOptions(part="reason/r1")).requests
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="no ServeGen client"):
        read_trace_file(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("trace.csv", "0,0,0,,0,0\n600,1.0,1.0,Pareto,1,1\n", r"trace.csv:2: .*neither Gamma nor Weibull"),
        ("trace.csv", "0,-1,0,,0,0\n", r"trace.csv:1: .*rate is missing or negative"),
        ("trace.csv", "0,1e9,1,Gamma,1,1\n", r"trace.csv:1: .*rate is above 10000"),
        ("trace.csv", "0,1,1,Weibull,1e-300,1\n", r"trace.csv:1: .*shape is not between"),
        ("dataset.json", '{"0": {"input_tokens": "{a: 1}"}}', r"dataset.json:1: no lengths"),
        ("dataset.json", '{"0": {"input_tokens": "{inf: 1}"}}', r"dataset.json:1: no lengths"),
        ("dataset.json", '{"0": {"input_tokens": "{5: nan}"}}', r"dataset.json:1: .*negative or no number"),
    ],
)
def test_servegen_faults_name_their_file(tmp_path: Path, name: str, text: str, problem: str) -> None:
    folder = servegen_folder(tmp_path, servegen_files(1.0) | {f"data/reason/r1/chunk-0-{name}": text})
    with pytest.raises(SettingsError, match=problem):
        read_trace_file(folder)


def test_odd_members_of_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a link is followed, a large member is read, or a broken archive is a traceback."""
    archive = tmp_path / "servegen.tar.gz"
    for target in ("/etc/passwd", "chunk-0-trace.csv"):
        with tarfile.open(archive, "w:gz") as packed:
            link = tarfile.TarInfo("chunk-0-trace.csv")
            link.type, link.linkname = tarfile.SYMTYPE, target
            packed.addfile(link)
        with pytest.raises(SettingsError, match="no ServeGen client"):
            read_trace_file(archive)
    with tarfile.open(archive, "w:gz") as packed:
        member = tarfile.TarInfo("chunk-0-trace.csv")
        member.size = 3000
        packed.addfile(member, io.BytesIO(Random(0).randbytes(1500).hex().encode()))
    with monkeypatch.context() as patched:
        patched.setattr(files, "MAX_MEMBER_BYTES", 2999)
        with pytest.raises(
            SettingsError, match=r"chunk-0-trace\.csv has 3,000 bytes; a ServeGen file has at most 2,999"
        ):
            read_trace_file(archive)
    header, packer = gzip.decompress(archive.read_bytes())[:512], zlib.compressobj(wbits=31)
    no_block = b"\x07"
    archive.write_bytes(packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH) + no_block * 100)
    with pytest.raises(SettingsError, match="cannot read the trace"):
        read_trace_file(archive)


# --- times and loops


def requests(times: list[float], **changes: object) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(row=i, num_prompt_tokens=9, num_output_tokens=1, arrived_at_s=t, **changes)  # type: ignore[arg-type]
        for i, t in enumerate(times)
    ]


def timed(times: list[float], **timing: object) -> Workload:
    return time_workload(Workload(requests=requests(times)), Timing(**timing))  # type: ignore[arg-type]


def arrivals(workload: Workload) -> list[float | None]:
    return [request.arrived_at_s for request in workload.requests]


def test_times_end_before_nanoseconds_do() -> None:
    with pytest.raises(ValueError, match="take 1e\\+12 s together; expected at most 4e\\+09"):
        timed([0.0, 1e12])
    with pytest.raises(ValueError, match="together"):
        timed([0.0, 10.0], speed=1e-9)


def test_ticks_are_spread_inside_themselves_and_said() -> None:
    """Red when a request can leave its tick, or when the load of a tick changes."""
    stamps = [3.0 * (i // 4) for i in range(40)]
    workload = timed(stamps)
    times = [t + 0.0 for t in arrivals(workload) if t is not None]
    assert len(set(times)) == 40
    spread = [r.arrived_at_s or 0.0 for r in spread_ticks(requests(stamps), Random(5))]
    assert spread == sorted(spread)
    assert max(later - earlier for earlier, later in pairwise(spread)) < 6.0
    assert workload.notes == ("arrivals were recorded in ticks of 3 s and are spread evenly inside them",)
    raw = timed(stamps, spread_ticks=False)
    assert arrivals(raw) == stamps
    assert raw.notes == ("arrivals come in batches every 3 s, as they were recorded",)


def test_one_odd_gap_does_not_shrink_the_tick() -> None:
    """Red when the tick is taken from the smallest gap: a trace with one stray stamp would stay in batches."""
    assert tick_s(requests([t for t in (0.0, 3.0, 6.0, 9.0, 9.001) for _ in range(20)])) == 3.0


def test_times_of_their_own_are_no_ticks() -> None:
    assert tick_s(requests([0.5 * i for i in range(40)])) is None
    assert timed([0.0, 1.0, 4.0]).notes == ()


def test_rates_stretch_what_was_recorded_and_keep_its_shape() -> None:
    assert arrivals(timed([5.0, 6.0, 9.0], speed=2.0)) == [0.0, 0.5, 2.0]
    workload = timed([0.0, 1.0, 4.0], rate_per_s=1.0)  # recorded: two gaps in four seconds
    assert arrivals(workload) == [0.0, 0.5, 2.0]
    assert "0.5 -> 1 per second" in workload.notes[0]
    assert arrivals(timed([0.0, 1.0, 4.0], duration_s=4.0)) == [0.0, 1.0]


def test_processes_replace_what_was_recorded() -> None:
    workload = timed([0.0] * 2000, rate_per_s=4.0, arrival=ArrivalKind.GAMMA, burstiness=0.25, seed=7)
    times = [t for t in arrivals(workload) if t is not None]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(2.0, rel=0.15)
    assert arrivals(timed([0.0] * 2000, rate_per_s=4.0, seed=7)) != times  # no rate of its own: drawn as Poisson
    with pytest.raises(ValueError, match="no arrival times; give a rate"):
        time_workload(Workload(requests=[WorkloadRequest(row=0, num_prompt_tokens=1, num_output_tokens=1)]), Timing())


def test_sessions_can_wait_or_not(tmp_path: Path) -> None:
    trace = read(tmp_path, BAILIAN)
    closed = time_workload(trace, Timing(loop=Loop.CLOSED)).requests
    assert [(r.arrived_at_s, r.gap_s) for r in closed] == [(0.0, None), (None, 2.5), (0.5, None)]
    agents = time_workload(read(tmp_path, AGENTS), Timing(loop=Loop.OPEN))
    assert [(r.arrived_at_s, r.gap_s) for r in agents.requests] == [(0.0, None), (0.0, None), (2.5, None)]


def test_clients_take_one_session_after_the_other(tmp_path: Path) -> None:
    """Red when a client begins its next session before the last turn of the one before."""
    sessions = [f'{{"conversation": {i}, "turns": [[20, 30], [5, 7]]}}\n' for i in range(5)]
    workload = time_workload(read(tmp_path, "".join(sessions)), Timing(num_clients=2))
    by_row = {r.row: r for r in workload.requests}
    assert [by_row[row].arrived_at_s for row in (0, 2, 4)] == [0.0, 0.0, None]
    assert [by_row[row].parent for row in (4, 6, 8)] == [1, 3, 5]
    assert {by_row[row].gap_s for row in (4, 6, 8)} == {0.0}
    order = [r.row for r in workload.requests]
    assert all(r.parent is None or order.index(r.parent) < order.index(r.row) for r in workload.requests)


def test_what_waits_for_a_late_request_is_left_out_with_it(tmp_path: Path) -> None:
    workload = time_workload(read(tmp_path, MOONCAKE_SESSIONS), Timing(duration_s=1.0))
    assert [r.session_id for r in workload.requests] == ["a", "a"]
    none_of_b = time_workload(read(tmp_path, MOONCAKE_SESSIONS), Timing(duration_s=0.5, speed=2.0))
    assert [r.session_id for r in none_of_b.requests] == ["a", "a"]
