"""What clients send to the Responses API as input becomes the messages of a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from answers_of_items import Marked, respond, stream
from scripted_gateway import MODEL, TOKENIZER, Rig, rig, says

from relevo.gateway.responses.sealed import Seal
from relevo.gateway.text.chat_template import ChatTemplate

RECORDED = Path(__file__).parents[3] / "shared/data/clients/codex"
EVERYTHING = ChatTemplate(
    "{% for t in tools or [] %}<tool {{ t.function.name }}>{% endfor %}"
    "{% for m in messages %}{{ m.role }}{% if m.name %}/{{ m.name }}{% endif %}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}:{{ m.content }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
)
CALL = {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": '{"port":"Brest"}'}


def shows_all(script: Any = None, **parts: Any) -> Rig:
    """Its prompts say everything that a message has."""
    return rig(script or says("ok"), chat_template=EVERYTHING, max_model_len=100_000, **parts)


def last_prompt(r: Rig) -> str:
    return TOKENIZER.decode(list(r.generator.requests[-1].prompt_token_ids))


async def prompt(asked: Any, **fields: Any) -> str:
    r = shows_all()
    await respond(r, asked, **fields)
    return last_prompt(r)


async def error(asked: Any, **fields: Any) -> tuple[int, str | None, str]:
    answer = await shows_all().post("/v1/responses", {"model": MODEL, "input": asked} | fields)
    told = answer.json()["error"]
    return answer.status_code, told["param"], told["message"]


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ("hi", "user:hi\n"),
        ([{"role": "assistant", "content": "x"}], "assistant:x\n"),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}], "user:a\n"),
        (
            [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]}],
            "assistant:a\n",
        ),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], "assistant:no\n"),
        ([{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}], "user:a\nb\n"),
        ([{"role": "assistant", "content": None}, {"role": "user", "content": "q"}], "assistant:\nuser:q\n"),
        ([{"role": "assistant", "phase": "commentary", "content": "x"}], "assistant:x\n"),
        ([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}], "developer:d\nuser:q\n"),
    ],
)
async def test_a_message_is_taken_in_every_shape_that_clients_write(items: Any, shown: str) -> None:
    """Red if one of them was refused on the second turn, as 400, or lost its text."""
    assert await prompt(items) == shown


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"summary": None}, "assistant:a"),
        ({"summary": []}, "assistant:a"),
        ({"summary": [{"type": "summary_text", "text": "short"}]}, "assistant(short):a"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "long"}]}, "assistant(long):a"),
        ({"summary": [], "content": None, "encrypted_content": "gAAAA-of-another-server"}, "assistant:a"),
        ({"summary": [], "encrypted_content": "rv1.bm90IG91cnM="}, "assistant:a"),
    ],
)
async def test_reasoning_is_taken_in_every_shape_and_belongs_to_the_answer(item: dict[str, Any], shown: str) -> None:
    """Red if a foreign seal ended the session, or reasoning became a message of its own."""
    items = [{"type": "reasoning", "id": "rs_1", **item}, {"role": "assistant", "content": "a"}]
    assert await prompt([*items, {"role": "user", "content": "q"}]) == f"{shown}\nuser:q\n"


async def test_reasoning_text_and_calls_are_one_message_and_results_follow() -> None:
    items = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "Looking."},
        CALL,
        CALL | {"call_id": "c2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "high"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": t} for t in "ab"]},
    ]
    assert await prompt(items) == (
        'user:q\nassistant(hm):Looking.<tide {"port": "Brest"}><tide {}>\ntool/tide:high\ntool/tide:a\nb\n'
    )


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ([], ""),
        (None, ""),
        ([{"type": "output_text", "text": "t"}], "t"),
        (
            [{"type": "input_text", "text": "seen:"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}],
            "seen:\n[The tool gave back an image here, which cannot be shown: this model takes text only.]",
        ),
    ],
)
async def test_a_result_may_be_parts_and_an_image_in_it_becomes_a_sentence(output: Any, shown: str) -> None:
    items = [CALL, {"type": "function_call_output", "call_id": "c1", "output": output}]
    assert (await prompt(items)).endswith(f"tool/tide:{shown}\n")


@pytest.mark.parametrize("part", [{"type": "input_image", "image_url": "x"}, {"type": "input_file", "file_id": "f"}])
async def test_an_image_of_a_user_is_refused_with_its_place(part: dict[str, Any]) -> None:
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text", "text": "b"}, part]}]
    status, param, message = await error(items)
    assert (status, param) == (400, "input[1].content[1]")
    assert "takes text only" in message


async def test_broken_histories_are_rendered() -> None:
    """A result without its call or before it, a call without its result, arguments that are no JSON."""
    items = [
        {"type": "function_call_output", "call_id": "c9", "output": "early"},
        CALL | {"arguments": '{"port": "'},
        {"role": "user", "content": "q"},
    ]
    shown = (await prompt(items)).split("\n")
    assert (shown[0], shown[2]) == ("tool:early", "user:q")
    assert shown[1].startswith("assistant:<tide ")
    assert '{\\"port\\": \\"' in shown[1]


async def test_calls_that_no_function_was_declared_for_are_told_as_calls() -> None:
    items = [
        {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'say "x"\n'},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    ]
    assert await prompt(items) == (
        'assistant:<local_shell {"type": "exec", "command": ["ls"]}>\ntool/local_shell:a.txt\n'
        'assistant:<patch {"input": "say \\"x\\"\\n"}>\ntool/patch:done\n'
    )


async def test_items_that_cannot_be_said_are_left_out_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"role": "user", "content": "q"},
    ]
    assert await prompt(items) == "user:q\n"
    assert "input.web_search_call" in caplog.text


async def test_instructions_come_first_as_the_system_s_words() -> None:
    assert await prompt("q", instructions="Be brief.") == "system:Be brief.\nuser:q\n"


@pytest.mark.parametrize(
    ("asked", "fields", "param"),
    [
        (None, {}, "input"),
        ([], {}, "input"),
        ([{"content": "x"}], {}, "input[0].type"),
        ([{"role": "user"}], {}, "input[0].content"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], {}, "input[0].content[0].type"),
        ([{"type": "function_call", "call_id": "c"}], {}, "input[0].name"),
        ([{"type": "function_call_output", "output": "x"}], {}, "input[0].call_id"),
        ("q", {"background": True}, "background"),
        ("q", {"conversation": "conv_1"}, "conversation"),
        ("q", {"prompt": {"id": "pmpt_1"}}, "prompt"),
        ("q", {"max_output_tokens": 0}, "max_output_tokens"),
        ("q", {"top_logprobs": 21}, "top_logprobs"),
        ("q", {"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ("q", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_the_field(asked: Any, fields: dict[str, Any], param: str) -> None:
    status, told, _ = await error(asked, **fields)
    assert (status, told) == (400, param)


async def test_a_model_has_to_be_named_and_those_that_may_be_are_told() -> None:
    answer = await shows_all().post("/v1/responses", {"input": "q"})
    told = answer.json()["error"]
    assert (answer.status_code, told["param"]) == (400, "model")
    assert MODEL in told["message"]


async def test_a_conversation_that_is_too_long_says_so_in_the_words_that_agents_match() -> None:
    answer = await rig(says("ok")).post("/v1/responses", {"model": MODEL, "input": "x" * 400})
    told = answer.json()["error"]
    assert (answer.status_code, told["param"], told["code"]) == (400, "input", "context_length_exceeded")
    assert told["message"].startswith("This model's maximum context length is 200 tokens. However, your prompt")


async def test_fields_that_only_hint_are_accepted_and_repeated() -> None:
    response = await respond(
        shows_all(),
        "q",
        metadata={"a": "b"},
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
        service_tier="auto",
        truncation="disabled",
        stream_options={"include_obfuscation": False},
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        include=["reasoning.encrypted_content", "file_search_call.results"],
        temperature=0.5,
        unheard_of={"x": 1},
    )
    assert (response["metadata"], response["prompt_cache_key"]) == ({"a": "b"}, "k")
    assert (response["safety_identifier"], response["user"], response["temperature"]) == ("s", "u", 0.5)
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}


async def test_effort_and_verbosity_are_the_template_s_to_use() -> None:
    template = ChatTemplate("{{ reasoning_effort }}/{{ verbosity }}{% for m in messages %}{{ m.content }}{% endfor %}")
    r = rig(says("ok"), chat_template=template)
    await respond(r, "q", reasoning={"effort": "high"}, text={"verbosity": "low"})
    assert last_prompt(r) == "high/lowq"


def test_a_seal_is_good_for_one_key_and_one_tenant() -> None:
    """Red if what one tenant's model thought could be brought into another's conversation."""
    sealed = Seal(b"key", "mine").close("thöught")
    assert Seal(b"key", "mine").open(sealed) == "thöught"
    assert Seal(b"key", "other").open(sealed) is None
    assert Seal(b"other", "mine").open(sealed) is None
    assert Seal(b"key", "mine").open("rv1.é") is None


async def test_sealed_reasoning_is_given_back_unchanged() -> None:
    """Red if the seal was left out, opened for anything, or the reasoning came back otherwise."""
    r = shows_all(says("?a long thought.yes"), make_parser=Marked)
    asked: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
    streamed = (await stream(r, "q", **asked))[-1]["response"]["output"]
    for output in (streamed, (await respond(r, "q", **asked))["output"]):
        sealed = output[0]["encrypted_content"]
        for given, shown in ((sealed, "assistant(a long thought):yes"), (sealed[:-4] + "AAAA", "assistant:yes")):
            bare = {"type": "reasoning", "summary": [], "encrypted_content": given}
            await respond(r, [{"role": "user", "content": "q"}, bare, output[1]])
            assert last_prompt(r) == f"user:q\n{shown}\n"


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded requests are not here")
@pytest.mark.parametrize("name", ["001", "002", "003"])
async def test_requests_that_codex_sent_are_answered(name: str) -> None:
    """Red if one of its items, tools or fields was refused."""
    body = json.loads((RECORDED / f"{name}-post-v1-responses.json").read_text())["body"]
    r = shows_all()
    found = await stream(r, body.pop("input"), **body | {"model": MODEL})
    assert found[-1]["type"] == "response.completed"
    assert "<tool exec_command>" in last_prompt(r)
    assert "<tool spawn_agent>" in last_prompt(r)  # in a namespace
