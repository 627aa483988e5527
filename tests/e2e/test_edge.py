"""Two regions and an edge on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from stack import Stack, descendants, stack

REGION = ("fake", "--topology", "unified", "--fake-base-s", "0.01", "--num-kv-blocks", "512", "--max-model-len", "2048")


@dataclass
class Answer:
    status: int
    region: str
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def post(url: str, body: Any, headers: dict[str, str] | None = None, path: str = "/v1/completions") -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(answer.status, answer.headers.get("x-relevo-region", ""), answer.read(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers.get("x-relevo-region", ""), error.read(), dict(error.headers))


@contextlib.contextmanager
def edge(**regions: str) -> Iterator[str]:
    """`relevo edge` on a free port, with every region seen up."""
    flags = [flag for name, url in regions.items() for flag in ("--region", f"{name}={url}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", "edge", "--port", "0", *flags], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        found = next(filter(None, (re.search(r"ready: (http://\S+)/v1", line) for line in process.stderr)))
        wait_for_regions(found.group(1), set(regions) - {"gone"})
        yield found.group(1)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def regions_up(url: str) -> set[str]:
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url + "/ready", timeout=10) as answer:
        return {region["region"] for region in json.loads(answer.read())["regions"] if region["ready"]}
    return set()


def wait_until_refused(url: str) -> None:
    """No process accepts there any more."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError:
            return
        assert time.monotonic() < deadline, f"{url} still accepts"
        time.sleep(0.02)


def wait_for_regions(url: str, expected: set[str]) -> None:
    deadline = time.monotonic() + 60
    while regions_up(url) != expected:
        assert time.monotonic() < deadline, f"{regions_up(url)} up, not {expected}"
        time.sleep(0.1)


def turn(url: str, session: int, turn_number: int) -> Answer:
    """Turn by turn the same session sends a longer prompt."""
    prompt = [(session * 37 + i) % 256 for i in range(60 * (turn_number + 1))]
    body = {"prompt": prompt, "max_tokens": 5, "ignore_eos": True, "temperature": 0}
    return post(url, body, {"x-session-affinity": f"chat-{session}"})


def turns(url: str, sessions: range, turn_number: int) -> dict[int, Answer]:
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(sessions, pool.map(lambda s: turn(url, s, turn_number), sessions), strict=True))


def test_sessions_stay_move_when_their_region_dies_and_do_not_come_back() -> None:
    with contextlib.ExitStack() as cleanup:
        east = cleanup.enter_context(stack(*REGION))
        west = cleanup.enter_context(stack(*REGION))
        url = cleanup.enter_context(edge(east=east.url, west=west.url))
        sessions = range(24)
        first = turns(url, sessions, 0)
        homes = {session: answer.region for session, answer in first.items()}
        assert set(homes.values()) == {"east", "west"}
        later = [turns(url, sessions, number) for number in (1, 2)]
        stayed = [answer.region == homes[session] for answers in later for session, answer in answers.items()]
        assert sum(stayed) >= 0.95 * len(stayed)
        cached = [a.json["usage"]["prompt_tokens_details"]["cached_tokens"] for a in later[1].values()]
        assert sum(count > 0 for count in cached) >= 0.95 * len(cached)
        east.process.send_signal(signal.SIGKILL)  # its children end with it, a moment later
        wait_until_refused(east.url)
        moved = turns(url, sessions, 3)
        assert {(answer.status, answer.region) for answer in moved.values()} == {(200, "west")}
        wait_for_regions(url, {"west"})
        port = east.url.rsplit(":", 1)[1]
        cleanup.enter_context(stack(*REGION, "--port", port))
        wait_for_regions(url, {"east", "west"})
        assert {answer.region for answer in turns(url, sessions, 4).values()} == {"west"}
        new = turns(url, range(100, 116), 0)
        assert "east" in {answer.region for answer in new.values()}


def test_a_region_that_stops_answering_loses_no_request_before_its_first_byte() -> None:
    with stack(*REGION, "--fake-base-s", "0.2") as east, stack(*REGION, "--fake-base-s", "0.2") as west:
        with edge(east=east.url, west=west.url) as url, ThreadPoolExecutor(16) as pool:
            body = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
            asked = [pool.submit(post, url, body | {"prompt": [i] * 30}) for i in range(16)]
            while east.metric("vllm:num_requests_running") == 0:
                time.sleep(0.02)
            children = _tree(east.process.pid)
            for pid in children:
                os.kill(pid, signal.SIGSTOP)
            try:
                answers = [future.result() for future in asked]
            finally:
                for pid in children:
                    os.kill(pid, signal.SIGCONT)
        assert Counter(answer.status for answer in answers) == {200: 16}
        assert {answer.json["usage"]["completion_tokens"] for answer in answers} == {20}


def _tree(pid: int) -> list[int]:
    return [pid, *descendants(pid)]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Stack, str]]:
    """One region, and an edge that knows it and one that is never there."""
    with stack(*REGION, "--api-key", "secret") as region, edge(only=region.url, gone="http://127.0.0.1:9") as url:
        yield region, url


KEY = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("body", "headers", "path"),
    [
        ({"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0}, KEY, "/v1/completions"),
        ({"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "stream": True}, KEY, "/v1/completions"),
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}, KEY, "/v1/chat/completions"),
        ({"prompt": [1], "max_tokens": -1}, KEY, "/v1/completions"),
        ({"prompt": [1] * 5000}, KEY, "/v1/completions"),
        (b"{not json", KEY, "/v1/completions"),
        ({"prompt": [1]}, {}, "/v1/completions"),
        ({"prompt": "x"}, KEY, "/tokenize"),
        ({}, KEY, "/v1/nothing"),
    ],
)  # fmt: skip
def test_answers_and_errors_pass_untouched(
    pair: tuple[Stack, str], body: Any, headers: dict[str, str], path: str
) -> None:
    region, url = pair
    post(region.url, body, headers, path)  # both answers below find the same prefix cached
    direct, through = post(region.url, body, headers, path), post(url, body, headers, path)
    assert through.status == direct.status
    assert through.region == "only"
    assert _without_ids(through.body) == _without_ids(direct.body)
    assert through.headers["content-type"] == direct.headers["content-type"]


def _without_ids(body: bytes) -> bytes:
    return re.sub(rb'"(id|created|system_fingerprint)":("[^"]*"|\d+)', b"", body)


def test_without_any_region_the_answer_says_so() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "relevo", "edge", "--port", "0", "--region", "far=http://127.0.0.1:9"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.search(r"ready: (http://\S+)/v1", process.stderr.readline())
        assert found
        answer = post(found.group(1), {"prompt": [1]})
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert answer.status == 503
    assert "far" in answer.json["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
