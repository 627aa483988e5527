"""What servers get wrong, as edits of one answer or request: what `check_faults` puts together."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from fault_edits import put, reply, retext, whole
from scripted_answers import Call, Reply
from scripted_openai import Fault, ScriptedOpenAI

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def swap_chunks(found: list[Any]) -> None:
    found[-1], found[-2] = found[-2], found[-1]


def drop_roles(found: list[Any]) -> None:
    for chunk in found:
        for choice in chunk["choices"]:
            choice["delta"].pop("role", None)


def merge_chunks(found: list[Any]) -> None:
    """All text in one chunk."""
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found if one["choices"])
    found[1]["choices"][0]["delta"]["content"] = text
    del found[2:-2]


def kept_when_stopped(call: Call, answer: Reply) -> None:
    """The stop string stays in the text."""
    stop = call.body.get("stop")
    if answer.status != 200 or not stop or answer.chunks is not None:
        return
    stop = stop if isinstance(stop, str) else stop[0]
    retext(lambda text: text + stop)(answer.body)


def leak_into_stream(call: Call, answer: Reply) -> None:
    stop = call.body.get("stop") if isinstance(call.body, dict) else None
    if stop and answer.chunks is not None:
        answer.chunks[-1]["choices"][0]["delta"] = {"content": stop[0][:1]}


def lose_tail(call: Call, answer: Reply) -> None:
    if call.body.get("stop") and answer.chunks is not None:
        tail = max(number for number, one in enumerate(answer.chunks) if one["choices"][0]["delta"].get("content"))
        answer.chunks[tail]["choices"][0]["delta"]["content"] = ""


def only_first_stop(body: dict[str, Any]) -> None:
    if isinstance(body.get("stop"), list):
        body["stop"] = body["stop"][:2]


def only_short_stops(body: dict[str, Any]) -> None:
    stop = body.get("stop")
    if isinstance(stop, list) and any(len(one) > 4 for one in stop):
        body["stop"] = None


def fixed_seed_for_all(body: dict[str, Any]) -> None:
    body["seed"] = 1


def more_tokens(body: dict[str, Any]) -> None:
    body["usage"]["completion_tokens"] += 1
    body["usage"]["total_tokens"] += 1


def stopped_but_billed(call: Call, answer: Reply) -> None:
    if isinstance(call.body, dict) and call.body.get("stop") and answer.chunks is None and answer.status == 200:
        answer.body["usage"]["completion_tokens"] = 20


def cached_is(count: Callable[[int], int], when: Callable[[int], bool] = lambda cached: True) -> Fault:
    def edit(body: Any) -> None:
        details = body["usage"]["prompt_tokens_details"]
        if when(details["cached_tokens"]):
            details["cached_tokens"] = count(body["usage"]["prompt_tokens"])

    return whole(edit)


def wrong_beside_others(server_text: str = "!") -> Fault:
    """Every second generating answer is wrong. Sequential and concurrent ones then differ."""
    counter = iter(range(10**9))

    def edit(body: Any) -> None:
        number = next(counter)
        if number % 16 >= 8 and "logprobs" in body["choices"][0]:
            body["choices"][0]["logprobs"] = None
            retext(lambda text: text + server_text)(body)

    return whole(edit)


def text_of_another(call: Call, answer: Reply) -> None:
    """Answers repeat a part of the prompt before."""
    if answer.status == 200 and isinstance(answer.body, dict):
        before = text_of_another.__dict__.get("prompt", "")
        retext(lambda text: text + str(before))(answer.body)
        text_of_another.__dict__["prompt"] = call.body.get("prompt", "")


def escapes_differ(call: Call) -> None:
    if b"\\u" in call.raw and isinstance(call.body, dict):
        call.body["messages"][0]["content"] += " more words"


def body_of(call: Call) -> Any:
    return call.body if isinstance(call.body, dict) else {}


def on_action(action: str, **changes: Any) -> Fault:
    """The server changes when its processes are disturbed so."""

    def change(server: ScriptedOpenAI, done: str) -> None:
        if done == action:
            for name, value in changes.items():
                setattr(server, name, value)

    return Fault(at_disturbance=change)


def has_value(name: str, value: Any) -> Callable[[Call], bool]:
    return lambda call: body_of(call).get(name) == value


def generates(call: Call) -> bool:
    return "completions" in call.path


def normalise(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), str):
        body["prompt"] = unicodedata.normalize("NFC", body["prompt"])


def latin(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), str):
        body["prompt"] = body["prompt"].encode("latin-1", errors="replace").decode("latin-1")


def first_word_only(body: dict[str, Any]) -> None:
    if "messages" in body and len(body["messages"]) > 1:
        body["messages"] = body["messages"][-1:]


def drop_images(body: dict[str, Any]) -> None:
    for message in body.get("messages", ()):
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part["type"] == "text"]


def drop_tool_results(body: dict[str, Any]) -> None:
    body["messages"] = [message for message in body["messages"] if message["role"] != "tool"]


EMPTY_200 = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def unless_whole(sign: bytes, told: bytes) -> Callable[[bytes], bytes | None]:
    """Answers heads that have the sign with these bytes."""
    return lambda head: told if sign in head else None


def ends_all_beside_a_wrong_token() -> Fault:
    """Once a token was wrong, streams that run break off."""

    def edit(call: Call, answer: Reply) -> None:
        if answer.chunks is not None:
            del answer.chunks[-2:]
            answer.cut = True

    return reply(edit)


def tells_the_last_canary() -> Fault:
    """A header shows what the request before had in its prompt."""
    before: list[str] = []

    def edit(call: Call, answer: Reply) -> None:
        if before:
            answer.headers["x-before"] = before[-1]
        before.extend(word for word in str(call.body.get("prompt", "")).split() if word.startswith("zq"))

    return reply(edit)


def answers_by_request_id() -> Fault:
    """The first answer under a request id is kept for all that name it."""
    kept: dict[str, Any] = {}

    def edit(call: Call, answer: Reply) -> None:
        if name := {key.lower(): value for key, value in call.headers.items()}.get("x-request-id"):
            answer.body = kept.setdefault(name, answer.body)

    return reply(edit)


def names_the_caller(call: Call, answer: Reply) -> None:
    answer.body = {**answer.body, "caller": call.headers.get("Authorization", "")}


def other_text_for_the_same() -> Fault:
    """No two answers to one question are the same."""
    counter = iter(range(10**9))
    return whole(
        lambda body: [put(None, "choices", 0, "logprobs")(body), retext(lambda text: f"{text}{next(counter)}")(body)]
    )
