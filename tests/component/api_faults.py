"""For every check of the Responses and Messages APIs a server with exactly the fault it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fault_edits import chunks, put, reply, status, whole
from scripted_answers import Call, Reply
from scripted_openai import Fault

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def _response(edit: Callable[[dict[str, Any]], Any], when: Callable[[Any], Any] = bool) -> Fault:
    return whole(edit, RESPONSES, when)


def _message(edit: Callable[[dict[str, Any]], Any], when: Callable[[Any], Any] = bool) -> Fault:
    return whole(edit, MESSAGES, when)


def _events(path: str, edit: Callable[[list[Any]], Any]) -> Fault:
    return chunks(edit, path=path)


def _asked(edit: Callable[[dict[str, Any]], Any]) -> Fault:
    """Edits requests before they are looked at."""

    def apply(call: Call) -> None:
        if isinstance(call.body, dict) and call.path.startswith((RESPONSES, MESSAGES)):
            edit(call.body)

    return Fault(request=apply)


def _of(found: list[Any], type: str) -> dict[str, Any]:
    return next(event for event in found if event["type"] == type)


def _has(path: str, *words: bytes) -> Callable[[Call], bool]:
    return lambda call: call.path.startswith(path) and all(word in call.raw for word in words)


def _lose_results(body: dict[str, Any]) -> None:
    if isinstance(body.get("input"), list):
        body["input"] = [item for item in body["input"] if item.get("type") != "function_call_output"]


def _lose_untyped_parts(body: dict[str, Any]) -> None:
    if isinstance(body.get("input"), list):
        body["input"] = [item for item in body["input"] if isinstance(item["content"], str) or item["role"] == "user"]


def _repeat_prompt(body: dict[str, Any]) -> None:
    if body.get("previous_response_id"):
        body["previous_response_id"] = None


def _forget_unknown(body: dict[str, Any]) -> None:
    if body.get("previous_response_id", "").startswith("resp_0123"):
        del body["previous_response_id"]


def _lose_blocks(body: dict[str, Any]) -> None:
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if isinstance(block.get("content"), list):
                block["content"] = "None"


def _stop_kept(body: dict[str, Any]) -> None:
    body["stop_reason"], body["stop_sequence"] = "end_turn", None


def _openai_error(call: Call, answer: Reply) -> None:
    if answer.status == 400:
        answer.body = {"error": answer.body["error"]}


def _cached_twice(body: dict[str, Any]) -> None:
    body["usage"]["input_tokens"] += body["usage"]["cache_read_input_tokens"]


def _name_as(found: list[Any]) -> None:
    found[1] = b'event: message\ndata: {"type": "ping"}\n\n'


API_FAULTS: dict[str, Fault] = {
    "responses.object": _response(lambda body: body["output"][0].pop("role", None)),
    "responses.members": _response(lambda body: body.pop("incomplete_details", None)),
    "responses.usage": _response(lambda body: body["usage"].update(total_tokens=1)),
    "responses.incomplete": _response(put("completed", "status")),
    "responses.instructions": _asked(lambda body: body.pop("instructions", None)),
    "responses.history_items": _asked(_lose_untyped_parts),
    "responses.output_is_input": status(_has(RESPONSES, b'"output_text"'), 400),
    "responses.forced_call": _response(lambda body: body["output"][0].pop("call_id", None)),
    "responses.call_history": _asked(_lose_results),
    "responses.format": _asked(lambda body: body.pop("text", None)),
    "responses.error": status(_has(RESPONSES, b'"hot"'), 500),
    "responses.unknown_previous": _asked(_forget_unknown),
    "responses.not_stored": _asked(lambda body: body.pop("store", None)),
    "responses.fetched": status(lambda call: call.method == "GET" and call.path.startswith(RESPONSES)),
    "responses.chain": _asked(_repeat_prompt),
    "responses.input_tokens": _response(
        lambda body: body.update(input_tokens=7) if body["object"] == "response.input_tokens" else None
    ),
    "responses.event_order": _events(RESPONSES, lambda found: found.pop(2)),
    "responses.sequence_numbers": _events(RESPONSES, lambda found: found[3].update(sequence_number=9)),
    "responses.same_items": _events(
        RESPONSES, lambda found: _of(found, "response.output_text.delta").update(item_id="x")
    ),
    "responses.deltas_join": _events(
        RESPONSES, lambda found: _of(found, "response.output_text.delta").update(delta="x")
    ),
    "responses.stream_equals_whole": _events(
        RESPONSES, lambda found: _of(found, "response.output_text.delta").update(delta="x")
    ),
    "responses.incomplete_event": _events(RESPONSES, lambda found: found[-1].update(type="response.completed")),
    "responses.call_stream": _events(RESPONSES, lambda found: found[2]["item"].update(call_id="call_7")),
    "messages.object": _message(lambda body: body.pop("stop_sequence", None)),
    "messages.max_tokens": _message(put("end_turn", "stop_reason")),
    "messages.cached_adds_up": _message(_cached_twice),
    "messages.stop_sequence": _message(_stop_kept, when=lambda body: "stop_sequences" in body),
    "messages.blocks": _asked(lambda body: body.pop("system", None) if isinstance(body.get("system"), list) else None),
    "messages.forced_call": _message(lambda body: body["content"][0].update(input='{"port": "Brest"}')),
    "messages.choice_none": _asked(
        lambda body: body.update(tool_choice={"type": "any"}) if body.get("tool_choice") == {"type": "none"} else None
    ),
    "messages.call_cut": _message(put("tool_use", "stop_reason")),
    "messages.tool_result": _asked(_lose_blocks),
    "messages.foreign_thinking": status(_has(MESSAGES, b"signature"), 400),
    "messages.count_tokens": whole(put(1, "input_tokens"), "count_tokens"),
    "messages.error": reply(_openai_error, MESSAGES),
    "messages.no_max_tokens": _asked(lambda body: body.setdefault("max_tokens", 4)),
    "messages.beta": status(lambda call: any("no-such-beta" in value for value in call.headers.values()), 400),
    "messages.event_order": _events(MESSAGES, lambda found: found.pop(2)),
    "messages.event_names": _events(MESSAGES, _name_as),
    "messages.start": _events(MESSAGES, lambda found: found[0]["message"]["usage"].update(input_tokens=0)),
    "messages.end": _events(MESSAGES, lambda found: found[-2]["delta"].update(stop_sequence=None)),
    "messages.stream_equals_whole": _events(
        MESSAGES, lambda found: _of(found, "content_block_delta")["delta"].update(text="x")
    ),
    "messages.call_stream": _events(MESSAGES, lambda found: found[2]["content_block"].update(input={"port": "Brest"})),
}
