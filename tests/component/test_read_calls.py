"""What a client sees of calls and reasoning that a model wrote, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from family_outputs import TOOLS
from scripted_gateway import EOS, Rig, Step, events, ids, rig, says

from relevo.core.request import FinishReason
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.registry import REASONING_FORMATS, TOOL_FORMATS
from relevo.gateway.text.chat_template import ChatTemplate

CALL = '<tool_call>{"name":"tide","arguments":{"port":"Brest"}}</tool_call>'
PING = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{{ tools | tojson if tools else '' }}assistant:"
    "{% if enable_thinking is defined %}{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)


def served(script: Sequence[Step], tools: str = "hermes", reasoning: str = "qwen3") -> Rig:
    return rig(
        script,
        make_parser=ComposedParsers(REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools)),
        tool_format=TOOL_FORMATS.get(tools),
        reasoning_format=REASONING_FORMATS.get(reasoning),
        chat_template=ChatTemplate(TEMPLATE),
        max_model_len=4000,
    )


async def whole(script: Sequence[Step], tools: str = "hermes", **fields: Any) -> dict[str, Any]:
    response = await served(script, tools).chat(**({"tools": TOOLS} | fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def chunks(script: Sequence[Step], tools: str = "hermes", **fields: Any) -> list[dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    payloads = events(await served(script, tools).chat(**({"tools": TOOLS} | options | fields)))
    return [payload for payload in payloads if isinstance(payload, dict)]


def put_together(payloads: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that a client makes of a stream's deltas, and how it ended."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    for choice in (choice for payload in payloads for choice in payload["choices"] if choice["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["calls"]):
                assert call["id"] and call["type"] == "function" and call["function"]["name"]
                message["calls"].append({"name": call["function"]["name"], "arguments": "", "id": call["id"]})
            else:
                assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
            message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


def shown(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """A whole answer in the same form."""
    choice = body["choices"][index]
    message = choice["message"]
    calls = [{**call["function"], "id": call["id"]} for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "calls": calls,
        "finish_reason": choice["finish_reason"],
    }


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"calls": [(call["name"], call["arguments"]) for call in message["calls"]]}


async def both(script: Sequence[Step], tools: str = "hermes", **fields: Any) -> dict[str, Any]:
    """What a whole answer says; a stream of the same output says the same."""
    message = without_ids(shown(await whole(script, tools, **fields)))
    assert without_ids(put_together(await chunks(script, tools, **fields))) == message
    return message


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7, 1000])
async def test_text_before_a_call_and_the_call_come_whole_at_any_pace(tokens_per_step: int) -> None:
    """Red if several tokens of a step, as after a handoff, were read in another way than one by one."""
    message = await both(says(f"Looking.{CALL}\n{PING}", tokens_per_step=tokens_per_step))
    assert message == {
        "content": "Looking.",
        "reasoning": "",
        "calls": [("tide", '{"port":"Brest"}'), ("ping", "{}")],
        "finish_reason": "tool_calls",
    }


async def test_a_message_of_calls_alone_has_no_content() -> None:
    message = (await whole(says(f"{CALL}\n")))["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


async def test_calls_are_counted_in_their_order_and_named_in_their_first_delta_alone() -> None:
    """Red if an index were the tool's place in the request, or a later delta repeated id, type or name."""
    payloads = await chunks(says(f"<think>x</think>{PING}{CALL}{PING}"))
    deltas = [c for p in payloads for choice in p["choices"] for c in choice["delta"].get("tool_calls", ())]
    assert [call["index"] for call in deltas if "id" in call] == [0, 1, 2]
    assert all("id" not in call and "name" not in call["function"] for call in deltas if "type" not in call)
    assert [call["name"] for call in put_together(payloads)["calls"]] == ["ping", "tide", "ping"]


@pytest.mark.parametrize("end", [FinishReason.LENGTH, FinishReason.STOP])
async def test_arguments_that_are_cut_stay_a_call_that_is_not_told_as_finished(end: FinishReason) -> None:
    message = await both(says(f'{PING}<tool_call>{{"name":"tide","arguments":{{"port":"Br', end=end))
    assert message["calls"] == [("ping", "{}"), ("tide", '{"port":"Br')]
    assert message["finish_reason"] == ("length" if end is FinishReason.LENGTH else "stop")
    assert message["content"] == ""


async def test_a_call_that_is_cut_before_its_arguments_is_text() -> None:
    message = await both(says(f'{PING}<tool_call>{{"name":"tide"', end=FinishReason.LENGTH))
    assert (message["calls"], message["content"]) == ([("ping", "{}")], '<tool_call>{"name":"tide"')
    assert message["finish_reason"] == "length"


async def test_a_name_that_no_tool_has_is_passed_on() -> None:
    message = await both(says('<tool_call>{"name":"nosuch","arguments":{}}</tool_call>'))
    assert (message["calls"], message["finish_reason"]) == ([("nosuch", "{}")], "tool_calls")


async def test_one_call_ends_the_answer_if_no_others_are_wanted() -> None:
    """Red if the rest were generated and then left out: then it would be billed."""
    served_rig = served(says(f"{PING}{CALL} and so on"))
    body = (await served_rig.chat(tools=TOOLS, parallel_tool_calls=False)).json()
    message = shown(body)
    assert ([call["name"] for call in message["calls"]], message["finish_reason"]) == (["ping"], "tool_calls")
    assert message["content"] == ""
    assert body["usage"]["completion_tokens"] < len(ids(PING)), "the closing mark is not waited for"
    assert served_rig.generator.num_closed_early == 1
    assert (await both(says(f"{PING}{CALL}"), parallel_tool_calls=False))["calls"] == [("ping", "{}")]


async def test_ids_are_new_in_every_answer() -> None:
    script = says(f"{PING}{PING}")
    named = [call["id"] for _ in range(3) for call in shown(await whole(script))["calls"]]
    assert len(set(named)) == 6
    assert all(name.startswith("call_") and len(name) == len("call_") + 24 for name in named)


async def test_ids_have_the_form_of_the_models_own_template() -> None:
    mistral = shown(await whole(says("[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[ARGS]{}"), "mistral"))["calls"]
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in mistral)
    assert mistral[0]["id"] != mistral[1]["id"]
    written = "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    earlier = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "ping", "arguments": "{}"}}] * 2,
        },
        *({"role": "tool", "tool_call_id": "x", "content": "ok"} for _ in range(2)),
    ]
    kimi = shown(await whole(says(written * 2), "kimi_k2", messages=earlier))["calls"]
    assert [call["id"] for call in kimi] == ["functions.ping:2", "functions.ping:3"]


async def test_characters_of_many_tokens_arrive_whole_and_escapes_unbroken() -> None:
    text = '{"body":"ďź🚀 \\ud83d\\ude80"}'
    payloads = await chunks(says(f'<tool_call>{{"name":"put","arguments":{text}}}</tool_call>'))
    assert put_together(payloads)["calls"][0]["arguments"] == text
    deltas = [c for p in payloads for choice in p["choices"] for c in choice["delta"].get("tool_calls", ())]
    assert any("🚀" in call["function"]["arguments"] for call in deltas)
    assert any("\\ud83d\\ude80" in call["function"]["arguments"] for call in deltas)


def two(first: str, second: str) -> list[Step]:
    """Two choices, token by token in turns."""
    steps = [list(says(text, sample=sample)) for sample, text in enumerate((first, second))]
    return [step for pair in zip(*steps, strict=False) for step in pair] + steps[0][len(steps[1]) :]


async def test_choices_have_parsers_of_their_own() -> None:
    script = two(f"<think>hm</think>Hi.{CALL}{PING}", f"Hm {PING}")
    message = [without_ids(shown(await whole(script, n=2), index)) for index in (0, 1)]
    streamed = await chunks(script, n=2)
    assert [without_ids(put_together(streamed, index)) for index in (0, 1)] == message
    assert [len(each["calls"]) for each in message] == [2, 1]
    assert [each["content"] for each in message] == ["Hi.", "Hm"]


async def test_every_token_has_its_log_probability_once() -> None:
    """Also those of marks and of what is held back. Red if a delta without parts were dropped with its tokens."""
    text = f"<think>hm {PING} no</think>Hi.\n{CALL}\n"
    token_ids = [*ids(text), EOS]
    body = await whole(says(text), logprobs=True)
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == len(token_ids) == body["usage"]["completion_tokens"]
    payloads = await chunks(says(text), logprobs=True)
    streamed = [e for p in payloads for c in p["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in entries]


async def test_stop_strings_end_content_and_leave_calls_and_reasoning_alone() -> None:
    message = await both(says(f"<think>a}}b</think>Hi.{CALL}"), stop=["}"])
    assert (message["reasoning"], message["content"], message["finish_reason"]) == ("a}b", "Hi.", "tool_calls")
    assert message["calls"] == [("tide", '{"port":"Brest"}')]
    message = await both(says("<think>a}b</think>Hi} there"), stop=["}"])
    assert (message["content"], message["finish_reason"]) == ("Hi", "stop")


# ---- reasoning -------------------------------------------------------------------------------------------------------

OPEN, CLOSED = {"enable_thinking": True}, {"enable_thinking": False}


async def test_a_call_in_a_thought_that_ends_is_reasoning() -> None:
    message = await both(says(f"maybe {CALL} no</think>{PING}"), chat_template_kwargs=OPEN)
    assert (message["reasoning"], message["calls"]) == (f"maybe {CALL} no", [("ping", "{}")])


async def test_a_call_in_a_thought_behind_which_the_model_ends_is_a_call() -> None:
    message = await both(says(f"so {CALL}"), chat_template_kwargs=OPEN)
    assert (message["reasoning"], message["calls"]) == ("so", [("tide", '{"port":"Brest"}')])
    assert (message["content"], message["finish_reason"]) == ("", "tool_calls")


@pytest.mark.parametrize("end", [FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("written", ["I think", "<think>I think"])
async def test_a_thought_without_its_end_is_reasoning_however_it_ended(end: FinishReason, written: str) -> None:
    """Red if it were shown as content, in a stream or a whole answer, or if either of them chose differently."""
    message = await both(says(written, end=end), chat_template_kwargs=OPEN)
    assert (message["reasoning"], message["content"]) == ("I think", "")
    assert message["finish_reason"] == ("length" if end is FinishReason.LENGTH else "stop")


async def test_the_limit_within_a_thought_makes_no_call_of_it() -> None:
    message = await both(says(f"so {CALL} and", end=FinishReason.LENGTH), chat_template_kwargs=OPEN)
    assert (message["reasoning"], message["calls"]) == (f"so {CALL} and", [])
    assert message["finish_reason"] == "length"


@pytest.mark.parametrize("kwargs", [{}, CLOSED])
async def test_where_the_prompt_opened_nothing_the_answer_is_content_from_its_start(kwargs: dict[str, Any]) -> None:
    """The start is read from each request's own prompt. Red if a closed block, or none, were taken for an open one."""
    message = await both(says("Hello."), chat_template_kwargs=kwargs)
    assert (message["reasoning"], message["content"]) == ("", "Hello.")


@pytest.mark.parametrize("kwargs", [{}, OPEN, CLOSED])
async def test_a_model_that_opens_a_thought_itself_is_understood(kwargs: dict[str, Any]) -> None:
    message = await both(says("\n<think>\nhm\n</think>\n\nHello."), chat_template_kwargs=kwargs)
    assert (message["reasoning"], message["content"]) == ("hm", "Hello.")


async def test_a_mark_in_what_the_user_wrote_opens_nothing() -> None:
    messages = [{"role": "user", "content": "what is <think>"}]
    assert (await both(says("A mark."), messages=messages))["content"] == "A mark."


@pytest.mark.parametrize("text", ["<think>Let me", [{"type": "text", "text": "<think>Let me"}]])
async def test_an_answer_that_goes_on_with_a_thought_begins_in_it(text: Any) -> None:
    """The message's own text says so. Red if a mark of the user's, or one that was closed again, counted."""
    user = {"role": "user", "content": "what is <think>"}
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    messages = [user, {"role": "assistant", "content": text}]
    message = await both(says(" see.</think>Yes."), messages=messages, **fields)
    assert (message["reasoning"], message["content"]) == (" see.", "Yes.")
    messages = [user, {"role": "assistant", "content": "A mark"}]
    assert (await both(says(" is it."), messages=messages, **fields))["content"] == " is it."


async def test_tokens_of_reasoning_are_counted_where_the_prompt_opened_it() -> None:
    """The marks are counted, what follows is not; with several choices all of theirs are."""
    thought = "hm hm</think>"
    body = await whole(says(f"{thought}\n\nHello."), chat_template_kwargs=OPEN)
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    payloads = await chunks(two(f"{thought}Hello.", f"{thought}H"), n=2, chat_template_kwargs=OPEN)
    assert payloads[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * len(thought)}


async def test_an_answer_that_the_limit_cut_in_a_thought_is_all_reasoning() -> None:
    body = await whole(says("hm, let me", end=FinishReason.LENGTH), chat_template_kwargs=OPEN)
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == body["usage"]["completion_tokens"]
