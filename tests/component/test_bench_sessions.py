"""`relevo bench sessions` against a scripted server: prompts, headers, counts, the table, JSON and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_openai_server import FakeOpenAI, served_in_thread
from typer.testing import CliRunner, Result

from relevo.cli.bench import app

COUNTER = 'relevo:prefill_tokens_total{worker="%s",role="prefill"} %d'
EMPTY = "\n".join((COUNTER % ("prefill-0", 5), COUNTER % ("prefill-1", 5)))
USED = "\n".join((COUNTER % ("prefill-0", 35), COUNTER % ("prefill-1", 15)))
SMALL = ["--num-sessions", "3", "--turns", "2", "--system-len", "20", "--turn-len", "5", "--output-len", "3"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sessions", *arguments], env={"COLUMNS": "160"})


def test_the_table_shows_hits_and_skew_per_variant(tmp_path: Path) -> None:
    fake, out = FakeOpenAI(num_cached_tokens=10, metrics=[EMPTY, USED]), tmp_path / "out.json"
    with served_in_thread(fake) as url:
        result = bench("fake", "--url", url, "--variants", "ttft", *SMALL, "--gap-s", "0", "--json", str(out))
    assert result.exit_code == 0, result.output
    (variant,) = json.loads(out.read_text())["report"]["variants"]
    assert (variant["completed"], variant["failed"], variant["cached_tokens"]) == (6, 0, 60)
    assert variant["input_tokens"] == 3 * (25 + 33)
    assert variant["hit_fraction"] == pytest.approx(60 / 174)
    assert variant["prefill_tokens"] == {"prefill-0": 30, "prefill-1": 10}
    assert variant["skew_prefill"] == pytest.approx(1.5)
    assert "34.5 %" in result.output
    assert "1.50" in result.output


def test_every_variant_gets_the_same_prompts_and_a_session_is_sent_in_order() -> None:
    fake = FakeOpenAI(metrics=[EMPTY])
    with served_in_thread(fake) as url:
        result = bench("fake", "--url", url, "--variants", "ttft,ttft+header", *SMALL, "--concurrency", "1")
    assert result.exit_code == 0, result.output
    prompts = [body["prompt"] for body in fake.bodies]
    assert prompts[:6] == prompts[6:]
    assert prompts[1][: len(prompts[0])] == prompts[0]


def test_recorded_sessions_are_replayed(tmp_path: Path) -> None:
    row = {"session_id": "a", "timestamp": 0, "input": "x" * 40, "output": "y" * 8}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"input": "x" * 40 + "z" * 8}) + "\n")
    fake, picture = FakeOpenAI(metrics=[EMPTY]), tmp_path / "sessions.html"
    with served_in_thread(fake) as url:
        result = bench("fake", "--url", url, "--variants", "ttft", "--trace", str(tmp_path), "--report", str(picture))
    assert result.exit_code == 0, result.output
    assert [len(body["prompt"]) for body in fake.bodies] == [10, 12]
    assert "Sessions by routing variant: 1 sessions, 2 turns" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--variants", "best"], "is no routing policy"),
        (["--trace", "no-such-file"], "cannot read the sessions"),
        (["--turn-len", "many"], "is not a length"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], said: str) -> None:
    result = bench("fake", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
