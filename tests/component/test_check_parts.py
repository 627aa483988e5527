"""The parts of `relevo check` below the checks: strict event streams, curl, near ties, gauges, processes, reports."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from relevo.check.catalogue import CHECKS
from relevo.check.disturber import Action, ChaosCommand, LocalProcesses, own_lineage
from relevo.check.equality import difference, is_near_tie
from relevo.check.exchange import Answer, Exchange, shortened
from relevo.check.gauges import KV_USAGE, RUNNING, reading
from relevo.check.report import exit_status, failure_stories, result_table, to_json, to_junit
from relevo.check.words import Level, Mismatch, Result, Skip, Status
from relevo.client.http import Request
from relevo.client.sse import SSEParser, read_body
from relevo.core.errors import SettingsError, StartError


@pytest.mark.parametrize(
    ("raw", "data", "problem"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"], None),
        (b"data: a\r\n\r\n: comment\r\n\r\ndata:b\r\n\r\n", ["a", "b"], None),
        (b"event: x\nid: 1\nretry: 5\ndata: a\ndata: b\n\n", ["a\nb"], None),
        (b"data: a\n", [], "middle of an event"),
        (b"data: a\n\ndata: b", ["a"], "middle of an event"),
        (b'{"a": 1}\n\n', [], "neither a field nor a comment"),
        (b"data: \xff\n\n", ["\ufffd"], "not UTF-8"),
        (b"", [], None),
    ],
)
def test_event_streams_are_read_strictly(raw: bytes, data: list[str], problem: str | None) -> None:
    body = read_body(raw)
    assert [event.text for event in body.events] == data
    assert [problem in told for told in body.problems] == ([True] if problem else [])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stream_reads_the_same_however_it_is_cut(size: int) -> None:
    """Red when an event or a line end that two pieces share is lost or counted twice."""
    raw = b"data: a\r\n\r\n: x\r\rdata: b\ndata:c\n\nevent: e\r\ndata\r\n\r\nnonsense\n\ndata: d\r\r"
    parser, events = SSEParser(), []
    for start in range(0, len(raw), size):
        events += parser.feed(raw[start : start + size])
    assert [*events, *parser.end()] == read_body(raw).events
    assert parser.problems == read_body(raw).problems
    assert [event.data for event in read_body(raw).events] == [b"a", b"b\nc", b"", b"d"]
    assert [raw[: event.end].count(b"data") for event in read_body(raw).events] == [1, 3, 4, 5]


BODIES = {
    "none": b"",
    "quotes": json.dumps({"a": 'it\'s "quoted" $HOME `x` \\ 🎉'}, ensure_ascii=False).encode(),
    "nul": b'{"a": "\x00"}',
    "not utf-8": b'{"a": "\xff\xfe"}',
    "deep": b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "long": b'{"prompt": "' + b"word " * 20_000 + b'"}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_curl_of_a_report_sends_the_same_bytes(body: bytes, tmp_path: Path) -> None:
    """A `curl` that writes down what it is told stands for the real one. Red when quoting loses a byte."""
    tool = tmp_path / "curl"
    tool.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "argv = sys.argv[1:]\n"
        "given = argv[argv.index('--data-binary') + 1] if '--data-binary' in argv else ''\n"
        "body = sys.stdin.buffer.read() if given == '@-' else os.fsencode(given)\n"
        "print(json.dumps([argv, body.hex()]))\n"
    )
    tool.chmod(0o755)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer secret-key"}
    exchange = Exchange(request=Request(method="POST", url="http://host:1/v1/x?a=b&c", headers=headers, body=body))
    assert "secret-key" not in exchange.curl
    assert len(exchange.curl) < 9_000, "long repetitions are written as products"
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        exchange.curl,
        shell=True,
        capture_output=True,
        env={**os.environ, "PATH": path, "OPENAI_API_KEY": "k"},
        check=True,
    )
    argv, sent = json.loads(done.stdout)
    assert bytes.fromhex(sent) == body
    assert "http://host:1/v1/x?a=b&c" in argv and "Content-Type: application/json" in argv
    assert "Authorization: Bearer k" in argv


def answered(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    exchange = Exchange(request=Request(method="POST", url="http://h/v1/chat/completions", headers={}, body=b"{}"))
    return Answer(
        exchange=exchange, status=status, headers=headers or {}, raw=json.dumps(body).encode(), duration_s=0.1
    )


def test_looks_into_an_answer_name_what_is_missing() -> None:
    answer = answered({"a": [{"b": True, "c": 1}]})
    assert answer.at(int, "a", 0, "c") == 1
    with pytest.raises(Mismatch, match=r"no a\[1\]\.b"):
        answer.at(str, "a", 1, "b")
    with pytest.raises(Mismatch, match=r"a\[0\]\.b is True"):
        answer.at(int, "a", 0, "b")
    assert answer.at(float, "a", 0, "c") == 1


def test_a_refusal_for_want_of_room_is_no_failure() -> None:
    with pytest.raises(Skip):
        answered({}, 503, {"retry-after": "1"}).ok()
    with pytest.raises(Mismatch):
        answered({}, 503).ok()


def told(tokens: list[tuple[str, float, dict[str, float]]]) -> Answer:
    content = [
        {"token": t, "logprob": p, "top_logprobs": [{"token": k, "logprob": v} for k, v in top.items()]}
        for t, p, top in tokens
    ]
    text = "".join(token for token, _, _ in tokens)
    return answered({"choices": [{"message": {"content": text}, "logprobs": {"content": content}}]})


def test_only_close_choices_are_near_ties() -> None:
    first = told([("a", -0.1, {}), ("b", -0.70, {"b": -0.70, "c": -0.71})])
    close = told([("a", -0.1, {}), ("c", -0.70, {"c": -0.70, "b": -0.71})])
    far = told([("a", -0.1, {}), ("c", -0.2, {"c": -0.2, "b": -2.0})])
    assert difference(first, first) is None
    assert "character 1" in (difference(first, close) or "")
    assert is_near_tie(first, close)
    assert not is_near_tie(first, far)
    assert not is_near_tie(answered({"choices": [{"message": {"content": "x"}}]}), first)


def test_gauges_are_summed_over_labels_and_dialects() -> None:
    text = (
        '# HELP x\nvllm:num_requests_running{a="b c"} 2.0\nvllm:num_requests_running{a="d"} 1\nsglang:token_usage 0.5\n'
    )
    assert reading(text, RUNNING) == 3.0
    assert reading(text, KV_USAGE) == 0.5
    assert reading("", RUNNING) is None


# ---- processes -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def sleeper(mark: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print('up', flush=True); import signal; signal.pause()", mark, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def test_local_processes_are_found_stopped_continued_and_killed() -> None:
    mark = f"mark-of-{os.getpid()}"
    disturber = LocalProcesses.of([f"mark-of-{os.getpid()}$"])
    async with sleeper(mark) as process:
        assert await disturber.targets() == [str(process.pid)]
        assert await LocalProcesses.of([str(process.pid)]).targets() == [str(process.pid)]
        assert await LocalProcesses.of([f"{os.getpid()}/mark-of"]).targets() == [str(process.pid)]
        assert await LocalProcesses.of([f"{process.pid}/mark-of"]).targets() == [], "it is not below itself"
        assert await disturber.do(Action.STOP, str(process.pid))
        while state_of(process.pid) != "T":  # noqa: ASYNC110  # the kernel sets no event
            await asyncio.sleep(0)
        assert await disturber.do(Action.CONTINUE, str(process.pid))
        assert not await disturber.do(Action.SLOW_LINK, str(process.pid))
        assert await disturber.do(Action.KILL, str(process.pid))
        assert await process.wait() == -9
        assert await disturber.targets() == []
        assert await disturber.do(Action.KILL, str(process.pid)), "a process that is gone is killed already"


async def test_the_own_lineage_is_spared() -> None:
    """Red when a broad pattern reaches the tool itself or the shell it was started from."""
    assert {os.getpid(), os.getppid()} <= own_lineage()
    assert not {str(pid) for pid in own_lineage()} & set(await LocalProcesses.of(["."]).targets())


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="regular expression"):
        LocalProcesses.of(["("])


async def test_a_chaos_command_lists_acts_and_declines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = tmp_path / "chaos.sh"
    script.write_text(
        'case "$1" in\n  list) echo "a b"; echo; echo c;;\n'
        f'  kill) echo "$@" >> {shlex.quote(str(log))};;\n'
        "  stop) exit 3;;\n  *) exit 64;;\nesac\n"
    )
    disturber = ChaosCommand(f"sh {shlex.quote(str(script))}")
    assert await disturber.targets() == ["a b", "c"], "one a line"
    assert await disturber.do(Action.KILL, "a b")
    assert log.read_text() == "kill a b\n"
    assert not await disturber.do(Action.FILL_DISK, "a")
    with pytest.raises(StartError, match="status 3"):
        await disturber.do(Action.STOP, "a")
    with pytest.raises(StartError, match="cannot be run"):
        await ChaosCommand("/no/such/command").targets()


# ---- reports ---------------------------------------------------------------------------------------------------------


def results() -> list[Result]:
    must = next(one for one in CHECKS if one.level is Level.MUST)
    should = next(one for one in CHECKS if one.level is Level.SHOULD)
    story = {
        "expected": "more",
        "got": "less\x00",
        "sent": "POST /x {}",
        "answer": "HTTP 500\n{}",
        "curl": "curl -sS x",
    }
    return [
        Result(check=must, status=Status.PASSED, duration_s=0.5, notes=("a near tie",)),
        Result(check=must, status=Status.SKIPPED, duration_s=0.0, reason="no [logprobs] here"),
        Result(check=must, status=Status.FAILED, duration_s=1.0, **story),
        Result(check=should, status=Status.ADVICE, duration_s=1.0, **story),
    ]


def test_a_failure_tells_its_whole_story() -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(result_table(results()))
    console.print(failure_stories(results()))
    text = console.export_text()
    one = results()[2].check
    for part in (
        one.expects,
        one.why,
        one.source,
        "more",
        "less",
        "POST /x {}",
        "HTTP 500",
        "curl -sS x",
        "[logprobs]",
    ):
        assert part in text
    assert text.count("repeat") == 2


def test_json_has_every_member_of_a_failure() -> None:
    body = json.loads(json.dumps(to_json(results(), {"url": "u"})))
    assert body["summary"] == {"passed": 1, "failed": 1, "advice": 1, "skipped": 1}
    assert body["url"] == "u" and body["results"][1]["reason"] == "no [logprobs] here"
    assert {"sent", "got", "expected", "why", "curl", "answer", "source"} <= set(body["results"][2])


@pytest.mark.parametrize(("strict", "failures"), [(False, "1"), (True, "2")])
def test_junit_is_xml_that_a_ci_can_read(strict: bool, failures: str) -> None:
    suite = ElementTree.fromstring(to_junit(results(), "check \x01", strict=strict))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", failures, "1")
    assert suite[2][0].tag == "failure" and "curl -sS x" in (suite[2][0].text or "")


def test_exit_status_counts_advice_only_if_strict() -> None:
    passed, skipped, failed, advice = results()
    assert exit_status([passed, skipped], strict=True) == 0
    assert exit_status([passed, advice], strict=False) == 0
    assert exit_status([passed, advice], strict=True) == 1
    assert exit_status([failed], strict=False) == 1


def test_long_bodies_keep_both_ends() -> None:
    assert shortened("a" * 10 + "b" * 10, 6) == "aaa ... (14 characters left out) ... bbb"
