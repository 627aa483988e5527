"""For every check a server with exactly the fault that it is there to find."""

from __future__ import annotations

import json

from agent_faults import AGENT_FAULTS
from api_faults import API_FAULTS
from fault_edits import chunks, every_text, first_entry, put, reply, request, retext, status, whole
from scripted_answers import Call, Reply, error
from scripted_openai import Fault
from wrong_answers import (
    EMPTY_200,
    answers_by_request_id,
    body_of,
    cached_is,
    drop_images,
    drop_roles,
    drop_tool_results,
    ends_all_beside_a_wrong_token,
    escapes_differ,
    first_word_only,
    fixed_seed_for_all,
    generates,
    has_value,
    kept_when_stopped,
    latin,
    leak_into_stream,
    lose_tail,
    merge_chunks,
    more_tokens,
    names_the_caller,
    normalise,
    on_action,
    only_first_stop,
    only_short_stops,
    other_text_for_the_same,
    stopped_but_billed,
    swap_chunks,
    tells_the_last_canary,
    text_of_another,
    unless_whole,
    wrong_beside_others,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


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
    "shape.null_fields": status(lambda call: "seed" in body_of(call) and call.body["seed"] is None, 400),
    "shape.unknown_fields": status(lambda call: "x_unknown_field" in body_of(call), 400),
    "shape.history": request(first_word_only),
    "shape.developer_role": status(lambda call: b'"developer"' in call.raw, 400),
    "shape.tool_choice_none": whole(
        lambda body: body["choices"][0]["message"].update(tool_calls=[{"id": "1"}]), when=lambda body: "tools" in body
    ),
    "shape.json_schema": whole(retext(lambda text: "Yes, it is."), when=lambda body: "response_format" in body),
    "shape.participant_name": status(lambda call: b'"name":"ada"' in call.raw, 400),
    "shape.image_part": request(drop_images),
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
    "tools.history": request(drop_tool_results),
    "tools.unknown_choice": status(has_value("tool_choice", "sometimes")),
    # stream
    "stream.content_type": reply(lambda call, answer: answer.headers.update({"Content-Type": "text/plain"})),
    "stream.chunks": chunks(lambda found: found[3].update(id="other")),
    "stream.role": chunks(drop_roles),
    "stream.finish": chunks(swap_chunks),
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
    "stream.incremental": chunks(merge_chunks),
    "stream.error_is_a_status": status(lambda call: body_of(call).get("temperature") == "hot"),
    "stream.length": chunks(lambda found: found[-1]["choices"][0].update(finish_reason="stop")),
    "stream.completion_chunks": chunks(lambda found: found[1].update(object="chat.completion.chunk")),
    # sse
    "sse.framing": chunks(lambda found: found.insert(1, b"content: x\n\n")),
    "sse.one_line_json": chunks(lambda found: found.insert(1, b'data: {"choices":\ndata: []}\n\n')),
    "sse.not_cached": reply(lambda call, answer: answer.headers.update({"Cache-Control": "max-age=60"})),
    "sse.whole_characters": chunks(every_text(lambda text: text.encode()[:-1].decode(errors="replace") + " ")),
    "sse.own_chunks": chunks(lambda found: [one.update(id="one") for one in found]),
    # stop
    "stop.string": reply(kept_when_stopped),
    "stop.completion": request(lambda body: body.pop("stop", None)),
    "stop.first_of_list": request(only_first_stop),
    "stop.across_tokens": request(only_short_stops),
    "stop.stream_leaks_nothing": reply(leak_into_stream),
    "stop.held_back_text_comes": reply(lose_tail),
    "stop.no_match": whole(
        lambda body: body["choices"][0].update(finish_reason="stop"), when=lambda body: body.get("stop")
    ),
    "stop.empty_list": status(has_value("stop", []), 400),
    "stop.at_the_start": status(lambda call: len(str(body_of(call).get("stop") or "four")) == 1, 500),
    "stop.saves_tokens": reply(stopped_but_billed),
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
    "sampling.unseeded_varies": request(fixed_seed_for_all),
    "sampling.seed_repeats": request(lambda body: body.pop("seed", None)),
    "sampling.seeds_differ": request(fixed_seed_for_all),
    "sampling.seeded_stream_equals_whole": request(lambda body: body.get("stream") and body.update(seed=99)),
    "sampling.narrow_top_p": request(lambda body: body.pop("top_p", None)),
    "sampling.logit_bias": request(lambda body: body.pop("logit_bias", None)),
    "sampling.min_tokens": whole(lambda body: body["usage"].update(completion_tokens=2)),
    "sampling.temperature_range": request(lambda body: body.update(temperature=max(0, body["temperature"]))),
    # usage
    "usage.sums": whole(lambda body: body["usage"].update(total_tokens=1)),
    "usage.exact": whole(more_tokens),
    "usage.prompt_is_tokenize": whole(lambda body: body["usage"].update(prompt_tokens=3)),
    "usage.prompt_grows": whole(lambda body: body["usage"].update(prompt_tokens=7)),
    "usage.tells_cached": whole(put(..., "usage", "prompt_tokens_details")),
    "usage.fresh_is_not_cached": cached_is(lambda num_prompt: num_prompt - 1),
    "usage.cached_bounds": cached_is(lambda num_prompt: num_prompt + 16, when=bool),
    "usage.repeat_is_cached": cached_is(lambda num_prompt: 0),
    "usage.cached_answer_is_same": Fault(
        reply=lambda call, answer: (
            retext(lambda text: text + "!")(answer.body)
            if generates(call) and answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]
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
    "limits.huge_max_tokens": status(has_value("max_tokens", 1_000_000_000), 500),
    "limits.negative_max_tokens": request(
        lambda body: body.update(max_tokens=20) if body["max_tokens"] == -1 else None
    ),
    "limits.zero_max_tokens": request(lambda body: body.update(max_tokens=20) if body["max_tokens"] == 0 else None),
    "limits.empty_prompt": status(has_value("prompt", ""), 500),
    "limits.many_stop_strings": status(lambda call: len(body_of(call).get("stop") or "") > 500, 500),
    "limits.whole_context": status(lambda call: generates(call) and len(body_of(call).get("prompt") or "") > 500, 500),
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
    "errors.no_messages": status(lambda call: body_of(call).get("messages") == []),
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
    "errors.internal_fields": status(lambda call: "kv_transfer_params" in body_of(call), 500),
    "errors.authentication": status(lambda call: "wrong" in call.headers.get("Authorization", "")),
    "errors.good_beside_bad": status(has_value("max_tokens", 4), 500),
    # unicode
    "unicode.echo": request(latin),
    "unicode.escapes": Fault(request=escapes_differ),
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
    "unicode.normal_forms": request(normalise),
    # concurrency
    "concurrency.equal": wrong_beside_others(),
    "concurrency.streams_equal": chunks(every_text(lambda text: text.upper())),
    "concurrency.no_foreign_words": reply(text_of_another),
    "concurrency.all_answered": status(lambda call: str(body_of(call).get("prompt", "")).startswith("9:"), 500),
    "concurrency.mixed_kinds": chunks(every_text(lambda text: text + "?")),
    # hostile
    "hostile.logit_bias": status(lambda call: len(body_of(call).get("logit_bias") or ()) > 10, 500),
    "hostile.stop_token_ids": status(lambda call: "stop_token_ids" in body_of(call), 500),
    "hostile.many_choices": status(lambda call: body_of(call).get("n", 1) > 64, 502),
    "hostile.huge_prompt": status(lambda call: len(call.raw) > 10_000, 500),
    "hostile.tokenize": status(lambda call: call.path == "/tokenize", 500),
    "hostile.many_messages": status(lambda call: len(body_of(call).get("messages") or ()) > 10, 500),
    "hostile.many_tools": status(lambda call: "tools" in body_of(call), 500),
    "hostile.deep_schema": status(lambda call: "response_format" in body_of(call), 500),
    "hostile.many_fields": status(lambda call: "field_9" in body_of(call), 500),
    "hostile.logprobs": status(lambda call: body_of(call).get("top_logprobs") == 20, 500),
    "hostile.token_outside_vocabulary": ends_all_beside_a_wrong_token(),
    "hostile.many_digits": status(lambda call: b"0" * 400 in call.raw, 500),
    "hostile.chunk_borders": Fault(answers_bytes=unless_whole(b"chunked", b"HTTP/1.1 200 OK\r\n\r\n{}")),
    "hostile.upgrade_offer": Fault(answers_bytes=unless_whole(b"h2c", b"HTTP/1.1 400 Bad Request\r\n\r\n")),
    "hostile.two_lengths": Fault(answers_bytes=unless_whole(b"Content-Length: 5", 2 * EMPTY_200)),
    "hostile.no_host": Fault(answers_bytes=lambda head: None if b"Host" in head else EMPTY_200),
    "hostile.trailer_key": Fault(answers_bytes=lambda head: EMPTY_200 if b"chunked" in head else None),
    "hostile.http_1_0": Fault(
        answers_bytes=unless_whole(b"HTTP/1.0", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    ),
    "hostile.silent_connections": Fault(max_connections=100),
    "hostile.half_heads": Fault(max_connections=100),
    "hostile.half_bodies": Fault(max_connections=100),
    # tenants
    "tenants.cached_tokens": whole(lambda body: body["usage"]["prompt_tokens_details"].update(cached_tokens=16)),
    "tenants.no_foreign_words": tells_the_last_canary(),
    "tenants.same_request_id": answers_by_request_id(),
    "tenants.keys_are_not_shown": reply(names_the_caller, "/v1/models"),
    "tenants.flood": Fault(one_at_a_time=True),
    "tenants.long_streams": Fault(one_at_a_time=True),
    "tenants.large_n": Fault(one_at_a_time=True),
    "tenants.priority": Fault(one_at_a_time=True),
    "tenants.equal_beside": other_text_for_the_same(),
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
    "chaos.abort_and_kill": on_action("kill", leaked_tokens=500),
    "chaos.kill_no_silent_end": on_action("kill", broken="end"),
    "chaos.kill_streams_survive": on_action("kill", broken="error"),
    "chaos.kill_in_prefill": on_action("kill", broken="cut"),
    "chaos.restart_each": on_action("kill", names=["11"]),
    "chaos.short_pause": on_action("stop", broken="wrong"),
    "chaos.stopped_is_noticed": on_action("stop", broken="hang"),
    "chaos.long_pause": on_action("stop", broken="end"),
    "chaos.slow_reader": Fault(hangs_beside=4),
    "chaos.slow_link": on_action("slow-link", broken="refuse"),
    "chaos.disk_full": on_action("fill-disk", broken="refuse"),
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
