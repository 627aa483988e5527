"""`relevo check` from argv to files and exit status, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from check_faults import FAULTS
from scripted_answers import MODEL
from scripted_openai import Fault, ScriptedOpenAI, scripted
from typer.testing import CliRunner

from relevo.cli.main import make_app

runner = CliRunner()
app = make_app("check")


@contextmanager
def in_thread(server: ScriptedOpenAI) -> Iterator[str]:
    """Its URL; the command runs an event loop of its own."""
    loop = asyncio.new_event_loop()
    urls: list[str] = []
    up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with scripted(server) as url:
            urls.append(url)
            up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert up.wait(30)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_all_right_is_exit_status_0_with_both_files(tmp_path: Path) -> None:
    out, junit = tmp_path / "out.json", tmp_path / "out.xml"
    with in_thread(ScriptedOpenAI()) as url:
        done = runner.invoke(
            app, ["check", url, "--only", "shape", "--only", "stop.*", "--skip", "shape.model", "--json", str(out),
                  "--junit", str(junit), "--strict"],
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    body = json.loads(out.read_text())
    assert body["model"] == MODEL and body["summary"]["failed"] == 0 and body["summary"]["passed"] >= 30
    assert "shape.model" not in {one["id"] for one in body["results"]}
    assert len(ElementTree.fromstring(junit.read_bytes())[0]) == len(body["results"])


def test_a_must_that_is_not_met_is_exit_status_1_and_its_curl_is_shown() -> None:
    with in_thread(ScriptedOpenAI(FAULTS["shape.chat"])) as url:
        done = runner.invoke(app, ["check", url, "--only", "shape.chat"])
    assert done.exit_code == 1
    assert "curl" in done.output and "the answer has no id" in done.output


def test_advice_is_exit_status_0_unless_strict() -> None:
    fault = FAULTS["shape.chat_nullable"]
    for flags, status in (([], 0), (["--strict"], 1)):
        with in_thread(ScriptedOpenAI(fault)) as url:
            done = runner.invoke(app, ["check", url, "--only", "shape.chat_nullable", *flags])
        assert done.exit_code == status, done.output


def test_an_oracle_is_compared_with() -> None:
    with in_thread(ScriptedOpenAI(FAULTS["oracle.topics"])) as url, in_thread(ScriptedOpenAI(Fault())) as oracle:
        assert runner.invoke(app, ["check", url, "--only", "oracle.topics", "--oracle", oracle]).exit_code == 1
        assert runner.invoke(app, ["check", oracle, "--only", "oracle", "--oracle", oracle]).exit_code == 0


def test_the_key_is_sent_and_never_shown() -> None:
    server = ScriptedOpenAI(FAULTS["shape.chat"], api_key="secret-key")
    with in_thread(server) as url:
        done = runner.invoke(app, ["check", url, "--only", "shape.chat", "--api-key", "secret-key"])
    assert done.exit_code == 1 and "secret-key" not in done.output


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "name the server"),
        (["http://127.0.0.1:1"], "cannot reach"),
        (["http://127.0.0.1:1", "--only", "nothing"], "names no check"),
        (["http://127.0.0.1:1", "--processes", "("], "regular expression"),
        (["http://127.0.0.1:1", "--processes", "x", "--chaos-command", "y"], "exclude each other"),
    ],
)
def test_a_mistake_of_the_operator_is_one_sentence_and_exit_status_2(flags: list[str], told: str) -> None:
    done = runner.invoke(app, ["check", *flags])
    assert done.exit_code == 2
    assert told in done.output and "Traceback" not in done.output


def test_list_names_every_check_without_a_server() -> None:
    done = runner.invoke(app, ["check", "--list"])
    assert done.exit_code == 0 and "stop.across_tokens" in done.output and "chaos.long_pause" in done.output


def test_an_unknown_model_is_told_with_those_there_are() -> None:
    with in_thread(ScriptedOpenAI()) as url:
        done = runner.invoke(app, ["check", url, "--model", "other"])
    assert done.exit_code == 2 and MODEL in done.output
