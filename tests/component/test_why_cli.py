"""`relevo why` against a scripted server: what it prints, and what it says where there is nothing to tell."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import Result
from typer.testing import CliRunner

from relevo.cli.main import make_app
from relevo.cli.timeline_screen import Look, summary_lines, timeline_lines
from relevo.core.errors import RelevoError
from relevo.gateway.requests.report import explanation_json
from relevo.policy.slowness.words import Explanation, Phase, PhaseName, SlowCause

NASTY = "x\x1b]0;owned\x07\x9b31m\u202e<b>"


def phase(name: PhaseName, begins_s: float, took_s: float, **more: Any) -> Phase:
    return Phase(name=name, begins_s=begins_s, took_s=took_s, **more)


IN_LINE = Explanation(
    cause=SlowCause.LINE,
    sentence="The first token took 4.00 s, of which 3.80 s in the gateway's line: 41 requests were ahead.",
    advice="More workers (--topology).",
    phases=(
        phase(PhaseName.LINE, 0.0, 3.8, facts={"num_ahead": 41}),
        phase(
            PhaseName.PREFILL, 3.8, 0.2, worker_id="prefill-0", facts={"num_prompt_tokens": 9, "num_cached_tokens": 4}
        ),
        phase(PhaseName.DECODE, 4.0, 1.0, worker_id="decode-0", is_before_first_token=False),
    ),
    ttft_s=4.0,
    e2e_s=5.0,
    worst_gap_s=0.2,
)
QUICK = replace(
    IN_LINE,
    cause=SlowCause.NOTHING,
    sentence="Nothing stands out.",
    advice="",
    phases=(phase(PhaseName.DECODE, 0.0, 1.0, worker_id="decode-0", is_before_first_token=False),),
    ttft_s=None,
    e2e_s=1.0,
    worst_gap_s=None,
)
FACTS = {
    "model": "m",
    "state": "ended",
    "outcome": "finished",
    "num_prompt_tokens": 9,
    "num_cached_tokens": 4,
    "num_output_tokens": 3,
}
REQUESTS = {
    "slow-1": {"id": "slow-1", **FACTS, **explanation_json(IN_LINE)},
    "quick/ä?": {"id": "quick/ä?", **FACTS, **explanation_json(QUICK)},
}
READY = {"/ready": (200, {"workers": []})}


@contextmanager
def server(answers: Mapping[str, tuple[int, Any]], key: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the paths that it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, answer = answers.get(self.path.partition("?")[0], (404, {"detail": "Not Found"}))
            if key is not None and self.headers.get("authorization") != f"Bearer {key}":
                status, answer = 401, {"error": {"message": "A key is needed."}}
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}", asked
        made.shutdown()


@pytest.fixture
def relevo() -> Iterator[tuple[str, list[str]]]:
    known = {f"/v1/requests/{name}": (200, told) for name, told in REQUESTS.items() if name == "slow-1"}
    known["/v1/requests/quick%2F%C3%A4%3F"] = (200, REQUESTS["quick/ä?"])
    known["/v1/requests"] = (200, {"object": "list", "data": list(REQUESTS.values())})
    with server(READY | known) as (url, asked):
        yield url, asked


def run(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(make_app("why"), ["why", *arguments, "--url", url], env={"RELEVO_API_KEY": ""})


def refusal(*arguments: str, url: str) -> str:
    result = run(*arguments, url=url)
    assert isinstance(result.exception, RelevoError), result.output
    return result.exception.message


# ---- printing --------------------------------------------------------------------------------------------------------


def test_a_request_is_printed_as_bars_in_eighty_columns(relevo: tuple[str, list[str]]) -> None:
    output = run("slow-1", url=relevo[0]).output
    assert "slow-1, m, finished, 9 prompt tokens (4 cached), 3 output tokens" in output
    assert "3.80 s in the gateway's line" in " ".join(output.split())
    assert "What helps: More workers (--topology)." in output
    rows = [line for line in output.splitlines() if "█" in line]
    assert [row.split()[0] for row in rows] == ["line", "prefill", "decode"]
    assert [row.split()[-1] for row in rows] == ["gateway", "prefill-0", "decode-0"]
    widths = [row.count("█") for row in rows]
    assert widths[0] > widths[2] > widths[1] > 0, "bars are as long as phases"
    assert rows[0].rindex("█") < rows[1].index("█"), "and begin where the one before ended"
    assert "first token after 4.00 s" in output
    assert "41 ahead" in output
    assert max(len(line) for line in output.splitlines()) <= 80
    assert "\x1b" not in output, "no terminal, no colours"


def test_the_slowest_are_listed_with_their_sentences(relevo: tuple[str, list[str]]) -> None:
    url, asked = relevo
    output = run("--slowest", "2", "--by", "ttft", "--since", "10m", "--model", "a&b", url=url).output
    assert "1    5.00 s   4.00 s   0.20 s   slow-1" in output
    assert "2    1.00 s        -        -   quick/ä?" in output
    assert "Nothing stands out." in output
    assert asked[-1] == "/v1/requests?slowest=2&by=ttft&since=10m&model=a%26b"


def test_two_are_told_apart_in_one_sentence(relevo: tuple[str, list[str]]) -> None:
    output = run("--diff", "quick/ä?", "slow-1", url=relevo[0]).output
    assert " ".join(output.splitlines()[-2:]).startswith(
        "B took 4.00 s longer than A (5.00 s against 1.00 s), and 3.80 s more of it"
    )


def test_json_is_what_the_server_said(relevo: tuple[str, list[str]]) -> None:
    url = relevo[0]
    assert json.loads(run("slow-1", "--json", url=url).output) == REQUESTS["slow-1"]
    assert json.loads(run("--slowest", "2", "--json", url=url).output)["data"] == list(REQUESTS.values())
    assert json.loads(run("--diff", "slow-1", "slow-1", "--json", url=url).output)["a"] == REQUESTS["slow-1"]


def test_a_terminal_gets_colours_and_one_without_blocks_plain_bars() -> None:
    coloured = "\n".join(timeline_lines({"id": "a"}, IN_LINE, Look(has_colour=True)))
    assert "\x1b[1;33m" in coloured
    plain = "\n".join(timeline_lines({"id": "a"}, IN_LINE, Look(has_blocks=False)))
    assert plain.isascii()
    assert "###" in plain


@pytest.mark.parametrize("width", [1, 60, 80, 500])
def test_names_cannot_steer_a_terminal(width: int) -> None:
    """Red when a text of the server is printed as it came."""
    evil = replace(
        IN_LINE,
        sentence=f"{NASTY}.",
        advice=NASTY,
        phases=(phase(PhaseName.LINE, 0.0, 5.0, worker_id=NASTY, facts={NASTY: NASTY, "failure": NASTY}),),
    )
    told = {"id": NASTY, "model": NASTY, "state": NASTY, "outcome": NASTY}
    look = Look(width=width)
    lines = [*timeline_lines(told, evil, look), *summary_lines(1, told, evil, look)]
    assert all(character.isprintable() for line in lines for character in line)
    assert any("<b>" in line for line in lines)


# ---- nothing to tell -------------------------------------------------------------------------------------------------


def test_nothing_listens() -> None:
    assert "no gateway answers at http://127.0.0.1:9 " in refusal("a", url="http://127.0.0.1:9")
    assert "--url" in refusal("a", url="http://127.0.0.1:9")


def test_no_such_request(relevo: tuple[str, list[str]]) -> None:
    message = refusal(f"none{NASTY}", url=relevo[0])
    assert "knows no request" in message
    assert "relevo why --slowest 10" in message
    assert message.isprintable()


def test_a_server_that_lies() -> None:
    """Red when one that nests without end, has numbers that no time has, or is no HTTP ends in a traceback."""
    told = json.dumps(REQUESTS["slow-1"])
    for body in (b"[" * 200_000, *(told.replace("5.0", text).encode() for text in ("1e999", "NaN", "9" * 4_000))):
        with server(READY | {"/v1/requests/a": (200, body)}) as (url, _):
            assert "no Relevo gateway" in refusal("a", url=url)
    with scripted(b"\x00\x01\x02\r\n\r\n") as url:
        assert "does not speak HTTP" in refusal("a", url=url)
    far = replace(IN_LINE, e2e_s=1e-300, phases=(phase(PhaseName.LINE, 1e17, 1e17),))
    assert "█" in "".join(timeline_lines({"id": "a"}, far, Look()))


def test_an_answer_without_end_is_not_read_for_ever() -> None:
    """Red when what a server says is read whole, however much it is."""
    with scripted(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (1 << 20)) as url:
        assert "does not end" in refusal("a", url=url)


def test_a_key_is_not_taken_elsewhere() -> None:
    """Red when a redirection is followed: what it names would be sent the key, too."""
    with server({}) as (other, asked):
        with scripted(f"HTTP/1.1 302 Found\r\nlocation: {other}/v1\r\ncontent-length: 0\r\n\r\n".encode()) as url:
            assert "no Relevo gateway" in refusal("a", "--api-key", "secret", url=url)
        assert asked == []


@contextmanager
def scripted(first: bytes, again: bytes = b"") -> Iterator[str]:
    """Says `first`, then `again` for as long as it is read."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(first)
            with suppress(OSError):
                while again:
                    self.request.sendall(again)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_another_kind_of_server() -> None:
    answers = (
        {},
        {"/v1/requests/a": (200, b"<html>"), "/v1/requests": (200, {"data": 1})},
        {"/v1/requests/a": (404, b"")},
    )
    for known in answers:
        with server(known) as (url, _):
            assert "is no Relevo gateway that tells of requests" in refusal("a", url=url)
            assert "is no Relevo gateway that tells of requests" in refusal("--slowest", "3", url=url)


def test_a_key_that_is_missing_or_wrong() -> None:
    with server(READY, key="right") as (url, _):
        assert "A key is needed. Give a key" in refusal("slow-1", url=url)
        assert "--api-key" in refusal("slow-1", "--api-key", "wrong", url=url)
        assert "no header takes" in refusal("slow-1", "--api-key", "a\nb", url=url)
    with server(READY | {"/v1/requests/slow-1": (200, REQUESTS["slow-1"])}, key="right") as (url, _):
        assert run("slow-1", "--api-key", "right,other", url=url).exit_code == 0


def test_a_server_of_another_version() -> None:
    told = REQUESTS["slow-1"] | {"cause": "the moon"}
    with server(READY | {"/v1/requests/a": (200, told)}) as (url, _):
        assert "this version does not know" in refusal("a", url=url)


def test_a_server_that_refuses() -> None:
    refused = (400, {"error": {"message": f"'since' is wrong{NASTY}"}})
    with server(READY | {"/v1/requests": refused, "/v1/requests/a": (500, {"error": "x"})}) as (url, _):
        assert "did not tell: 'since' is wrong" in refusal("--slowest", "1", url=url)
        assert refusal("--slowest", "1", url=url).isprintable()
        assert "status 500" in refusal("a", url=url)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a", "--slowest", "3"),
        ("a", "--diff", "a", "b"),
        ("a", "--since", "10m"),
        ("a", "--model", "m"),
        ("",),
        ("..",),
    ],
)
def test_what_cannot_be_meant(arguments: tuple[str, ...]) -> None:
    message = refusal(*arguments, url="http://127.0.0.1:9")
    assert "give --slowest N" in message or "no request; name it" in message


def test_since_is_a_time() -> None:
    assert "'--since' is 'soon'; write 2026-11-30" in refusal(
        "--slowest", "3", "--since", "soon", url="http://127.0.0.1:9"
    )


def test_ids_are_quoted_in_the_path(relevo: tuple[str, list[str]]) -> None:
    url, asked = relevo
    run("a/../../b?x=1#y", url=url)
    assert unquote(next(path for path in asked if "requests" in path)) == "/v1/requests/a/../../b?x=1#y"
    assert "/v1/requests/a%2F..%2F..%2Fb%3Fx%3D1%23y" in asked
