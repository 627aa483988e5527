"""A script behind the real gateway and processes: what it says arrives whole, whatever becomes of the workers."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, stack

SCRIPT = """
[[rule]]
contains = "tide"
count = [{ text = "<tool_response>", at_most = 0 }]
say = '''Looking it up: naïve 🚀
<tool_call>
{"name": "tide", "arguments": {"port": "Brest"}}
</tool_call>'''
pace_s = 0.02

[[rule]]
contains = "</tool_response>"
say = "The tide is high."

[[rule]]
contains = "several"
say = ["first", "second"]

[[rule]]
contains = "object"
say = '{"n": 42}'

[[rule]]
contains = "long"
say = "at the end of a long prompt"
"""
RAW = 'Looking it up: naïve 🚀\n<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("script") / "script.toml"
    path.write_text(SCRIPT, encoding="utf-8")
    with stack("fake", "--script", str(path), "--topology", "1p1d") as running:
        path.unlink()  # a worker that is started again says the same nevertheless
        yield running


def chat(running: Stack, *messages: dict[str, Any], **fields: Any) -> Any:
    return running.post("/v1/chat/completions", {"messages": list(messages), "max_tokens": 400, **fields})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def streamed(running: Stack, prompt: str) -> Iterator[str]:
    """Texts of a stream, as they come."""
    body = json.dumps({"prompt": prompt, "max_tokens": 400, "stream": True}).encode()
    request = urllib.request.Request(running.url + "/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])["choices"][0]["text"]


def test_a_call_its_result_and_the_last_word(scripted: Stack) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"port": "Brest"}'}}
    done = chat(
        scripted,
        user("When is the tide?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "high"},
    )["choices"][0]
    assert (done["message"]["content"], done["finish_reason"]) == ("The tide is high.", "stop")


@pytest.mark.parametrize("victim", ["decode-0", "prefill-0"])
def test_a_killed_worker_leaves_no_trace_in_what_is_said(scripted: Stack, victim: str) -> None:
    """Killed in the middle of the call. Red when a line begins again, or goes on at another place."""
    scripted.wait_ready()
    pid = scripted.pids()[victim]
    parts = []
    for part in streamed(scripted, f"The tide at {victim}?"):
        parts.append(part)
        if len(parts) == 30:
            os.kill(pid, signal.SIGKILL)
    assert "".join(parts) == RAW
    assert scripted.complete("The tide, and once more?", max_tokens=400)["choices"][0]["text"] == RAW
    scripted.wait_idle()


def test_lines_go_on_after_preemption_and_over_a_network(script: Path) -> None:
    """16 blocks, eight answers that want more: somebody is set aside and computed again. Red when a line then begins
    anew, or when blocks that are sent arrive in other places."""
    flags = ("--topology", "1p1d", "--kv-transport", "tcp", "--num-kv-blocks", "16", "--max-model-len", "256")
    with stack("fake", "--script", str(script), *flags) as tight, ThreadPoolExecutor(8) as pool:
        asked = {"max_tokens": 200}
        prompts = [f"{number} ships wait for the tide." for number in range(8)]
        answers = list(pool.map(lambda prompt: tight.complete(prompt, **asked)["choices"][0]["text"], prompts))
        assert answers == [RAW] * 8
        assert tight.metric("vllm:num_preemptions_total") > 0
        tight.wait_idle()


def test_what_is_said_is_held_to_a_schema_nevertheless(scripted: Stack) -> None:
    """Red when a script breaks what a client was promised."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    choice = chat(scripted, user("several"), response_format=wanted, max_tokens=60)["choices"][0]
    assert choice["message"]["content"].startswith("{")
    choice = chat(scripted, user("the object"), response_format=wanted)["choices"][0]
    assert json.loads(choice["message"]["content"]) == {"n": 42}


def test_several_continuations_say_their_own(scripted: Stack) -> None:
    choices = chat(scripted, user("several"), n=3, temperature=1)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["first", "second", "first"]


def test_a_prompt_of_an_agent_fits(scripted: Stack) -> None:
    answer = chat(scripted, user("x" * 150_000 + "long"))
    assert answer["choices"][0]["message"]["content"] == "at the end of a long prompt"
    assert answer["usage"]["prompt_tokens"] > 150_000


def test_a_prompt_without_a_rule_is_a_mistake_of_the_request(scripted: Stack) -> None:
    """Red when it is tried on every worker, or answered as if a worker had failed."""
    with pytest.raises(urllib.error.HTTPError) as found:
        chat(scripted, user("nothing"))
    error = json.loads(found.value.read())["error"]
    assert found.value.code == 400
    assert error["code"] == "invalid_request" and "No rule of the script matches" in error["message"]
