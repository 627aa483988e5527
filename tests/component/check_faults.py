"""For every check a server with exactly the fault that it is there to find."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

from agent_faults import AGENT_FAULTS
from api_faults import API_FAULTS
from fault_edits import chunks, every_text, first_entry, put, reply, request, retext, status, whole
from scripted_answers import Call, Reply, error
from scripted_openai import Fault, ScriptedOpenAI

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def _swap_chunks(found: list[Any]) -> None:
    found[-1], found[-2] = found[-2], found[-1]


def _drop_roles(found: list[Any]) -> None:
    for chunk in found:
        for choice in chunk["choices"]:
            choice["delta"].pop("role", None)


def _merge_chunks(found: list[Any]) -> None:
    """All text in one chunk."""
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found if one["choices"])
    found[1]["choices"][0]["delta"]["content"] = text
    del found[2:-2]


def _kept_when_stopped(call: Call, answer: Reply) -> None:
    """The stop string stays in the text."""
    stop = call.body.get("stop")
    if answer.status != 200 or not stop or answer.chunks is not None:
        return
    stop = stop if isinstance(stop, str) else stop[0]
    retext(lambda text: text + stop)(answer.body)


def _leak_into_stream(call: Call, answer: Reply) -> None:
    stop = call.body.get("stop") if isinstance(call.body, dict) else None
    if stop and answer.chunks is not None:
        answer.chunks[-1]["choices"][0]["delta"] = {"content": stop[0][:1]}


def _lose_tail(call: Call, answer: Reply) -> None:
    if call.body.get("stop") and answer.chunks is not None:
        tail = max(number for number, one in enumerate(answer.chunks) if one["choices"][0]["delta"].get("content"))
        answer.chunks[tail]["choices"][0]["delta"]["content"] = ""


def _only_first_stop(body: dict[str, Any]) -> None:
    if isinstance(body.get("stop"), list):
        body["stop"] = body["stop"][:2]


def _only_short_stops(body: dict[str, Any]) -> None:
    stop = body.get("stop")
    if isinstance(stop, list) and any(len(one) > 4 for one in stop):
        body["stop"] = None


def _fixed_seed_for_all(body: dict[str, Any]) -> None:
    body["seed"] = 1


def _more_tokens(body: dict[str, Any]) -> None:
    body["usage"]["completion_tokens"] += 1
    body["usage"]["total_tokens"] += 1


def _stopped_but_billed(call: Call, answer: Reply) -> None:
    if isinstance(call.body, dict) and call.body.get("stop") and answer.chunks is None and answer.status == 200:
        answer.body["usage"]["completion_tokens"] = 20


def _cached_is(count: Callable[[int], int], when: Callable[[int], bool] = lambda cached: True) -> Fault:
    def edit(body: Any) -> None:
        details = body["usage"]["prompt_tokens_details"]
        if when(details["cached_tokens"]):
            details["cached_tokens"] = count(body["usage"]["prompt_tokens"])

    return whole(edit)


def _wrong_beside_others(server_text: str = "!") -> Fault:
    """Every second generating answer is wrong. Sequential and concurrent ones then differ."""
    counter = iter(range(10**9))

    def edit(body: Any) -> None:
        number = next(counter)
        if number % 16 >= 8 and "logprobs" in body["choices"][0]:
            body["choices"][0]["logprobs"] = None
            retext(lambda text: text + server_text)(body)

    return whole(edit)


def _text_of_another(call: Call, answer: Reply) -> None:
    """Answers repeat a part of the prompt before."""
    if answer.status == 200 and isinstance(answer.body, dict):
        before = _text_of_another.__dict__.get("prompt", "")
        retext(lambda text: text + str(before))(answer.body)
        _text_of_another.__dict__["prompt"] = call.body.get("prompt", "")


def _escapes_differ(call: Call) -> None:
    if b"\\u" in call.raw and isinstance(call.body, dict):
        call.body["messages"][0]["content"] += " more words"


def _body_of(call: Call) -> Any:
    return call.body if isinstance(call.body, dict) else {}


def _on(action: str, **changes: Any) -> Fault:
    """The server changes when its processes are disturbed so."""

    def change(server: ScriptedOpenAI, done: str) -> None:
        if done == action:
            for name, value in changes.items():
                setattr(server, name, value)

    return Fault(at_disturbance=change)


def _is(name: str, value: Any) -> Callable[[Call], bool]:
    return lambda call: _body_of(call).get(name) == value


def _generates(call: Call) -> bool:
    return "completions" in call.path


def _normalise(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), str):
        body["prompt"] = unicodedata.normalize("NFC", body["prompt"])


def _latin(body: dict[str, Any]) -> None:
    if isinstance(body.get("prompt"), str):
        body["prompt"] = body["prompt"].encode("latin-1", errors="replace").decode("latin-1")


def _first_word_only(body: dict[str, Any]) -> None:
    if "messages" in body and len(body["messages"]) > 1:
        body["messages"] = body["messages"][-1:]


def _drop_images(body: dict[str, Any]) -> None:
    for message in body.get("messages", ()):
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part["type"] == "text"]


def _drop_tool_results(body: dict[str, Any]) -> None:
    body["messages"] = [message for message in body["messages"] if message["role"] != "tool"]


_EMPTY_200 = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def _unless_whole(sign: bytes, told: bytes) -> Callable[[bytes], bytes | None]:
    """Answers heads that have the sign with these bytes."""
    return lambda head: told if sign in head else None


def _ends_all_beside_a_wrong_token() -> Fault:
    """Once a token was wrong, streams that run break off."""

    def edit(call: Call, answer: Reply) -> None:
        if answer.chunks is not None:
            del answer.chunks[-2:]
            answer.cut = True

    return reply(edit)


def _tells_the_last_canary() -> Fault:
    """A header shows what the request before had in its prompt."""
    before: list[str] = []

    def edit(call: Call, answer: Reply) -> None:
        if before:
            answer.headers["x-before"] = before[-1]
        before.extend(word for word in str(call.body.get("prompt", "")).split() if word.startswith("zq"))

    return reply(edit)


def _answers_by_request_id() -> Fault:
    """The first answer under a request id is kept for all that name it."""
    kept: dict[str, Any] = {}

    def edit(call: Call, answer: Reply) -> None:
        if name := {key.lower(): value for key, value in call.headers.items()}.get("x-request-id"):
            answer.body = kept.setdefault(name, answer.body)

    return reply(edit)


def _names_the_caller(call: Call, answer: Reply) -> None:
    answer.body = {**answer.body, "caller": call.headers.get("Authorization", "")}


def _other_text_for_the_same() -> Fault:
    """No two answers to one question are the same."""
    counter = iter(range(10**9))
    return whole(
        lambda body: [put(None, "choices", 0, "logprobs")(body), retext(lambda text: f"{text}{next(counter)}")(body)]
    )


FAULTS: dict[str, Fault] = {
    # shape
    "shape.models": whole(put("page", "object"), "/v1/models", when=lambda body: True),
    "shape.model": whole(lambda body: body.update(id="other") if "id" in body else None, "/v1/models/"),
    "shape.health": status(lambda call: call.path == "/health", 500),
    "shape.chat": whole(put(..., "id")),
    "shape.chat_message": whole(lambda body: body["choices"][0].get("message", {}).update(role="user")),
    "shape.chat_nullable": whole(lambda body: body["choices"][0].get("message", {}).pop("refusal", None)),
    "shape.chat_usage": whole(put(..., "usage", "prompt_tokens")),
    "shape.ids_differ": whole(put("same", "id")),
    "shape.model_named": whole(put("another", "model")),
    "shape.content_parts": request(
        lambda body: body.update(messages=[{"role": "user", "content": str(body["messages"][0]["content"])}])
    ),
    "shape.max_completion_tokens": request(lambda body: body.pop("max_completion_tokens", None)),
    "shape.null_fields": status(lambda call: "seed" in _body_of(call) and call.body["seed"] is None, 400),
    "shape.unknown_fields": status(lambda call: "x_unknown_field" in _body_of(call), 400),
    "shape.history": request(_first_word_only),
    "shape.developer_role": status(lambda call: b'"developer"' in call.raw, 400),
    "shape.tool_choice_none": whole(
        lambda body: body["choices"][0]["message"].update(tool_calls=[{"id": "1"}]), when=lambda body: "tools" in body
    ),
    "shape.json_schema": whole(retext(lambda text: "Yes, it is."), when=lambda body: "response_format" in body),
    "shape.participant_name": status(lambda call: b'"name":"ada"' in call.raw, 400),
    "shape.image_part": request(_drop_images),
    "shape.json_object": whole(retext(lambda text: "Blue."), when=lambda body: "response_format" in body),
    "shape.completion": whole(put("completion", "object")),
    "shape.completion_default_length": request(lambda body: body.setdefault("max_tokens", 200)),
    "shape.completion_prompts": whole(
        lambda body: body["choices"].reverse(), when=lambda body: isinstance(body.get("prompt"), list)
    ),
    "shape.completion_token_ids": request(
        lambda body: body.update(prompt=body["prompt"][1:]) if isinstance(body.get("prompt"), list) else None
    ),
    "shape.completion_echo": request(lambda body: body.pop("echo", None)),
    "shape.content_type": reply(lambda call, answer: answer.headers.update({"Content-Type": "text/plain"})),
    "shape.request_id": reply(lambda call, answer: answer.headers.update({"x-request-id": ""})),
    # tools
    "tools.reach_the_model": request(lambda body: body.pop("tools", None)),
    "tools.forced": whole(
        lambda body: body["choices"][0]["message"]["tool_calls"][0]["function"].update(arguments="{}"),
        when=lambda body: "tool_choice" in body,
    ),
    "tools.history": request(_drop_tool_results),
    "tools.unknown_choice": status(_is("tool_choice", "sometimes")),
    # stream
    "stream.content_type": reply(lambda call, answer: answer.headers.update({"Content-Type": "text/plain"})),
    "stream.chunks": chunks(lambda found: found[3].update(id="other")),
    "stream.role": chunks(_drop_roles),
    "stream.finish": chunks(_swap_chunks),
    "stream.done": reply(lambda call, answer: setattr(answer, "num_done", 0)),
    "stream.ends": reply(lambda call, answer: setattr(answer, "cut", True)),
    "stream.equals_whole": chunks(every_text(lambda text: text.upper())),
    "stream.completion_equals_whole": chunks(every_text(lambda text: text + " ")),
    "stream.short_equals_whole": chunks(
        lambda found: found.insert(1, found[1]), when=lambda body: body.get("max_tokens") == 1
    ),
    "stream.usage_last": chunks(lambda found: found.pop(), when=lambda body: body.get("stream_options")),
    "stream.usage_equals_whole": chunks(
        lambda found: found[-1]["usage"].update(completion_tokens=19), when=lambda body: body.get("stream_options")
    ),
    "stream.choices_always": chunks(lambda found: found.append({**found[-1], "choices": []})),
    "stream.incremental": chunks(_merge_chunks),
    "stream.error_is_a_status": status(lambda call: _body_of(call).get("temperature") == "hot"),
    "stream.length": chunks(lambda found: found[-1]["choices"][0].update(finish_reason="stop")),
    "stream.completion_chunks": chunks(lambda found: found[1].update(object="chat.completion.chunk")),
    # sse
    "sse.framing": chunks(lambda found: found.insert(1, b"content: x\n\n")),
    "sse.one_line_json": chunks(lambda found: found.insert(1, b'data: {"choices":\ndata: []}\n\n')),
    "sse.not_cached": reply(lambda call, answer: answer.headers.update({"Cache-Control": "max-age=60"})),
    "sse.whole_characters": chunks(every_text(lambda text: text.encode()[:-1].decode(errors="replace") + " ")),
    "sse.own_chunks": chunks(lambda found: [one.update(id="one") for one in found]),
    # stop
    "stop.string": reply(_kept_when_stopped),
    "stop.completion": request(lambda body: body.pop("stop", None)),
    "stop.first_of_list": request(_only_first_stop),
    "stop.across_tokens": request(_only_short_stops),
    "stop.stream_leaks_nothing": reply(_leak_into_stream),
    "stop.held_back_text_comes": reply(_lose_tail),
    "stop.no_match": whole(
        lambda body: body["choices"][0].update(finish_reason="stop"), when=lambda body: body.get("stop")
    ),
    "stop.empty_list": status(_is("stop", []), 400),
    "stop.at_the_start": status(lambda call: len(str(_body_of(call).get("stop") or "four")) == 1, 500),
    "stop.saves_tokens": reply(_stopped_but_billed),
    # logprobs
    "logprobs.count": whole(
        lambda body: body["choices"][0]["logprobs"] and body["choices"][0]["logprobs"]["content"].pop(0)
    ),
    "logprobs.entries": whole(first_entry(lambda entry: entry["top_logprobs"].reverse())),
    "logprobs.bytes": whole(first_entry(lambda entry: entry.update(bytes=None))),
    "logprobs.greedy_is_best": whole(first_entry(lambda entry: entry.update(logprob=-9.0))),
    "logprobs.zero_top": request(lambda body: body.get("logprobs") and body.update(top_logprobs=2)),
    "logprobs.not_unasked": request(lambda body: body.update(logprobs=True) if "messages" in body else None),
    "logprobs.same_text": whole(retext(lambda text: text + "!"), when=lambda body: body.get("logprobs")),
    "logprobs.stream_equals_whole": chunks(
        lambda found: found[1]["choices"][0].update(logprobs=None), when=lambda body: body.get("logprobs")
    ),
    "logprobs.bound": request(lambda body: body.update(top_logprobs=min(20, body.get("top_logprobs") or 0))),
    "logprobs.completion": whole(
        lambda body: body["choices"][0]["logprobs"]["text_offset"].pop(), when=lambda body: body.get("logprobs")
    ),
    "logprobs.completion_offsets": whole(
        lambda body: body["choices"][0]["logprobs"].update(text_offset=list(range(20))),
        when=lambda body: body.get("logprobs"),
    ),
    "logprobs.sum_below_one": whole(
        first_entry(lambda entry: [one.update(logprob=-0.1) for one in entry["top_logprobs"]])
    ),
    # choices
    "choices.count": whole(lambda body: body["choices"].pop(), when=lambda body: body.get("n")),
    "choices.greedy_are_equal": whole(retext(lambda text: text + "!"), when=lambda body: body.get("n")),
    "choices.sampled_differ": whole(
        lambda body: [one["message"].update(content="same") for one in body["choices"]], when=lambda body: body.get("n")
    ),
    "choices.usage": whole(lambda body: body["usage"].update(prompt_tokens=99), when=lambda body: body.get("n")),
    "choices.stream": chunks(
        lambda found: [one["choices"][0].update(index=0) for one in found], when=lambda body: body.get("n")
    ),
    "choices.out_of_range": request(lambda body: body.update(n=1) if body.get("n") == 100_000 else None),
    # sampling
    "sampling.greedy_repeats": request(lambda body: body.update(temperature=1)),
    "sampling.unseeded_varies": request(_fixed_seed_for_all),
    "sampling.seed_repeats": request(lambda body: body.pop("seed", None)),
    "sampling.seeds_differ": request(_fixed_seed_for_all),
    "sampling.seeded_stream_equals_whole": request(lambda body: body.get("stream") and body.update(seed=99)),
    "sampling.narrow_top_p": request(lambda body: body.pop("top_p", None)),
    "sampling.logit_bias": request(lambda body: body.pop("logit_bias", None)),
    "sampling.min_tokens": whole(lambda body: body["usage"].update(completion_tokens=2)),
    "sampling.temperature_range": request(lambda body: body.update(temperature=max(0, body["temperature"]))),
    # usage
    "usage.sums": whole(lambda body: body["usage"].update(total_tokens=1)),
    "usage.exact": whole(_more_tokens),
    "usage.prompt_is_tokenize": whole(lambda body: body["usage"].update(prompt_tokens=3)),
    "usage.prompt_grows": whole(lambda body: body["usage"].update(prompt_tokens=7)),
    "usage.tells_cached": whole(put(..., "usage", "prompt_tokens_details")),
    "usage.fresh_is_not_cached": _cached_is(lambda num_prompt: num_prompt - 1),
    "usage.cached_bounds": _cached_is(lambda num_prompt: num_prompt + 16, when=bool),
    "usage.repeat_is_cached": _cached_is(lambda num_prompt: 0),
    "usage.cached_answer_is_same": Fault(
        reply=lambda call, answer: (
            retext(lambda text: text + "!")(answer.body)
            if _generates(call) and answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]
            else None
        )
    ),
    "usage.cached_prefix_only": whole(
        lambda body: body["usage"]["prompt_tokens_details"].update(cached_tokens=200),
        when=lambda body: str(body.get("prompt", "")).startswith("x"),
    ),
    # limits
    "limits.context_overflow": status(lambda call: len(call.raw) > 5_000, 500),
    "limits.context_overflow_wording": whole(lambda body: None),  # replaced below
    "limits.huge_max_tokens": status(_is("max_tokens", 1_000_000_000), 500),
    "limits.negative_max_tokens": request(
        lambda body: body.update(max_tokens=20) if body["max_tokens"] == -1 else None
    ),
    "limits.zero_max_tokens": request(lambda body: body.update(max_tokens=20) if body["max_tokens"] == 0 else None),
    "limits.empty_prompt": status(_is("prompt", ""), 500),
    "limits.many_stop_strings": status(lambda call: len(_body_of(call).get("stop") or "") > 500, 500),
    "limits.whole_context": status(
        lambda call: _generates(call) and len(_body_of(call).get("prompt") or "") > 500, 500
    ),
    # errors
    "errors.object": reply(
        lambda call, answer: setattr(answer, "body", {"detail": "wrong"}) if answer.status == 400 else None
    ),
    "errors.param_and_code": reply(
        lambda call, answer: answer.body["error"].pop("code") if answer.status == 400 else None
    ),
    "errors.not_json": status(lambda call: call.raw.endswith(b"["), 500),
    "errors.not_an_object": status(lambda call: call.raw.startswith(b"["), 500),
    "errors.nan": status(lambda call: b"NaN" in call.raw),
    "errors.invalid_utf8": status(lambda call: b"\xff" in call.raw),
    "errors.deep_nesting": status(lambda call: len(call.raw) > 100_000, 500),
    "errors.no_messages": status(lambda call: _body_of(call).get("messages") == []),
    "errors.wrong_type": request(
        lambda body: body.update(temperature=0) if isinstance(body.get("temperature"), str) else None
    ),
    "errors.response_format": status(lambda call: b"no_such_format" in call.raw),
    "errors.wrong_message": status(lambda call: b'"content":7' in call.raw, 500),
    "errors.unknown_model": request(lambda body: body.update(model="scripted")),
    "errors.unknown_model_path": status(lambda call: call.path == "/v1/models/no-such-model"),
    "errors.unknown_path": status(lambda call: call.path == "/v1/no-such-endpoint"),
    "errors.wrong_method": status(lambda call: call.method == "GET" and "chat" in call.path),
    "errors.content_type": status(lambda call: call.headers.get("Content-Type") == "text/plain"),
    "errors.internal_fields": status(lambda call: "kv_transfer_params" in _body_of(call), 500),
    "errors.authentication": status(lambda call: "wrong" in call.headers.get("Authorization", "")),
    "errors.good_beside_bad": status(_is("max_tokens", 4), 500),
    # unicode
    "unicode.echo": request(_latin),
    "unicode.escapes": Fault(request=_escapes_differ),
    "unicode.lone_surrogate": status(lambda call: b"ud83c surrogate" in call.raw, 500),
    "unicode.nul": request(
        lambda body: (
            body.update(messages=[{"role": "user", "content": body["messages"][0]["content"].partition("\0")[0]}])
            if "messages" in body
            else None
        )
    ),
    "unicode.stop_string": request(lambda body: body.pop("stop", None)),
    "unicode.not_mangled": reply(
        lambda call, answer: answer.headers.update({"Content-Type": "application/json; charset=latin-1"})
    ),
    "unicode.normal_forms": request(_normalise),
    # concurrency
    "concurrency.equal": _wrong_beside_others(),
    "concurrency.streams_equal": chunks(every_text(lambda text: text.upper())),
    "concurrency.no_foreign_words": reply(_text_of_another),
    "concurrency.all_answered": status(lambda call: str(_body_of(call).get("prompt", "")).startswith("9:"), 500),
    "concurrency.mixed_kinds": chunks(every_text(lambda text: text + "?")),
    # hostile
    "hostile.logit_bias": status(lambda call: len(_body_of(call).get("logit_bias") or ()) > 10, 500),
    "hostile.stop_token_ids": status(lambda call: "stop_token_ids" in _body_of(call), 500),
    "hostile.many_choices": status(lambda call: _body_of(call).get("n", 1) > 64, 502),
    "hostile.huge_prompt": status(lambda call: len(call.raw) > 10_000, 500),
    "hostile.tokenize": status(lambda call: call.path == "/tokenize", 500),
    "hostile.many_messages": status(lambda call: len(_body_of(call).get("messages") or ()) > 10, 500),
    "hostile.many_tools": status(lambda call: "tools" in _body_of(call), 500),
    "hostile.deep_schema": status(lambda call: "response_format" in _body_of(call), 500),
    "hostile.many_fields": status(lambda call: "field_9" in _body_of(call), 500),
    "hostile.logprobs": status(lambda call: _body_of(call).get("top_logprobs") == 20, 500),
    "hostile.token_outside_vocabulary": _ends_all_beside_a_wrong_token(),
    "hostile.many_digits": status(lambda call: b"0" * 400 in call.raw, 500),
    "hostile.chunk_borders": Fault(answers_bytes=_unless_whole(b"chunked", b"HTTP/1.1 200 OK\r\n\r\n{}")),
    "hostile.upgrade_offer": Fault(answers_bytes=_unless_whole(b"h2c", b"HTTP/1.1 400 Bad Request\r\n\r\n")),
    "hostile.two_lengths": Fault(answers_bytes=_unless_whole(b"Content-Length: 5", 2 * _EMPTY_200)),
    "hostile.no_host": Fault(answers_bytes=lambda head: None if b"Host" in head else _EMPTY_200),
    "hostile.trailer_key": Fault(answers_bytes=lambda head: _EMPTY_200 if b"chunked" in head else None),
    "hostile.http_1_0": Fault(
        answers_bytes=_unless_whole(b"HTTP/1.0", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    ),
    "hostile.silent_connections": Fault(max_connections=100),
    "hostile.half_heads": Fault(max_connections=100),
    "hostile.half_bodies": Fault(max_connections=100),
    # tenants
    "tenants.cached_tokens": whole(lambda body: body["usage"]["prompt_tokens_details"].update(cached_tokens=16)),
    "tenants.no_foreign_words": _tells_the_last_canary(),
    "tenants.same_request_id": _answers_by_request_id(),
    "tenants.keys_are_not_shown": reply(_names_the_caller, "/v1/models"),
    "tenants.flood": Fault(one_at_a_time=True),
    "tenants.long_streams": Fault(one_at_a_time=True),
    "tenants.large_n": Fault(one_at_a_time=True),
    "tenants.priority": Fault(one_at_a_time=True),
    "tenants.equal_beside": _other_text_for_the_same(),
    # oracle
    "oracle.topics": whole(retext(lambda text: text + "!")),
    "oracle.lengths": whole(retext(lambda text: text + "!")),
    "oracle.usage": whole(lambda body: body["usage"].update(prompt_tokens=1)),
    "oracle.logprobs": whole(first_entry(lambda entry: entry.update(logprob=-3.0))),
    # cancel
    "cancel.stream": Fault(ignores_clients_that_left=True),
    "cancel.whole": Fault(ignores_clients_that_left=True),
    "cancel.many_prefills": Fault(blocks_behind=True, ignores_clients_that_left=True),
    "cancel.kv_returns": Fault(leaks_kv=True),
    "cancel.random_moments": Fault(leaks_kv=True),
    "cancel.beside_others": whole(
        retext(lambda text: text + json.dumps([])), when=lambda body: False
    ),  # replaced below
    # chaos
    "chaos.abort_storm": Fault(leaks_kv=True),
    "chaos.abort_and_kill": _on("kill", leaked_tokens=500),
    "chaos.kill_no_silent_end": _on("kill", broken="end"),
    "chaos.kill_streams_survive": _on("kill", broken="error"),
    "chaos.kill_in_prefill": _on("kill", broken="cut"),
    "chaos.restart_each": _on("kill", names=["11"]),
    "chaos.short_pause": _on("stop", broken="wrong"),
    "chaos.stopped_is_noticed": _on("stop", broken="hang"),
    "chaos.long_pause": _on("stop", broken="end"),
    "chaos.slow_reader": Fault(hangs_beside=4),
    "chaos.slow_link": _on("slow-link", broken="refuse"),
    "chaos.disk_full": _on("fill-disk", broken="refuse"),
}


def _other_wording(call: Call, answer: Reply) -> None:
    if answer.status == 400:
        answer.body = error(400, "too long").body


def _third_time_wrong() -> Fault:
    """The same question gets another answer the second time."""
    seen: set[str] = set()

    def edit(call: Call, answer: Reply) -> None:
        if answer.status == 200 and isinstance(answer.body, dict) and call.body.get("max_tokens") == 24:
            key = str(call.body.get("prompt"))
            if key in seen:
                retext(lambda text: text + "!")(answer.body)
            seen.add(key)

    return reply(edit)


FAULTS["limits.context_overflow_wording"] = reply(_other_wording)
FAULTS["cancel.beside_others"] = _third_time_wrong()
FAULTS |= AGENT_FAULTS | API_FAULTS
