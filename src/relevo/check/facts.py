"""What a server offers: asked once, before the checks, with the smallest requests that can tell.

A feature counts as lacking only where the server says so with an error. One that is accepted and ignored is there, and
its checks will fail: an answer that silently means something else is worse than a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from relevo.check.exchange import Answer
from relevo.check.gauges import KV_USAGE, RUNNING, reading
from relevo.check.server import Server
from relevo.check.texts import OPENING, QUESTION
from relevo.check.words import Need
from relevo.client.http import CLIENT_ERRORS
from relevo.core.errors import StartError

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@dataclass(slots=True)
class Facts:
    model: str
    max_model_len: int | None = None
    version: str = ""
    lacking: dict[Need, str] = field(default_factory=dict)  # why, in the server's words where it had any

    def has(self, need: Need) -> bool:
        return need not in self.lacking


def _context_length(card: dict[str, Any]) -> int | None:
    meta = card.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    for value in (card.get("max_model_len"), meta.get("n_ctx"), meta.get("n_ctx_train")):
        if isinstance(value, int) and value > 0:
            return value
    return None


async def find_facts(
    server: Server, wanted_model: str | None, *, has_oracle: bool, has_processes: bool, other: Server | None = None
) -> Facts:
    """Ask. Raises what `OpenAIServer.pick_card` raises, and StartError if neither generating endpoint is there."""
    model, card = await server.pick_card(wanted_model)
    facts = Facts(model, _context_length(card))
    if facts.max_model_len is None:
        facts.lacking[Need.CONTEXT_LENGTH] = "/v1/models tells no context length"
    if server.api_key is None:
        facts.lacking[Need.API_KEY] = "no --api-key was given"
    if other is None:
        facts.lacking[Need.OTHER_KEY] = "no --other-api-key was given"
    else:
        await other.pick_card(model)
    if not has_oracle:
        facts.lacking[Need.ORACLE] = "no --oracle was given"
    if not has_processes:
        facts.lacking[Need.PROCESSES] = "neither --processes nor --chaos-command was given"
    facts.version = await _version(server)
    try:
        await _ask_about_generation(server, facts)
        await _ask_about_responses(server, facts)
        await _ask_about_messages(server, facts)
        await _ask_about_surroundings(server, facts)
    except CLIENT_ERRORS as error:
        raise StartError(f"{server.url} stopped answering: {str(error) or type(error).__name__}") from error
    return facts


async def _ask_about_generation(server: Server, facts: Facts) -> None:
    chat = {"model": facts.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1}
    plain = {"model": facts.model, "prompt": OPENING, "max_tokens": 1}
    await _ask(server, facts, Need.CHAT, chat)
    answer = await _ask(server, facts, Need.COMPLETIONS, plain)
    if not facts.has(Need.CHAT) and not facts.has(Need.COMPLETIONS):
        reasons = f"{facts.lacking[Need.CHAT]}; {facts.lacking[Need.COMPLETIONS]}"
        raise StartError(f"{server.url} generates nothing that can be checked: {reasons}")
    asks_for_json = chat | {
        "messages": [{"role": "user", "content": "Name a colour, as JSON."}]
    }  # or it may be refused
    base = chat if facts.has(Need.CHAT) else plain
    schema = {"type": "json_schema", "json_schema": {"name": "probe", "strict": True, "schema": _SCHEMA}}
    tool = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
    forced = {"type": "function", "function": {"name": "probe"}}
    for need, body in (
        (Need.CHAT_LOGPROBS, chat | {"logprobs": True, "top_logprobs": 2}),
        (Need.COMPLETION_LOGPROBS, plain | {"logprobs": 2}),
        (Need.CHOICES, base | {"n": 2}),
        (Need.ECHO, plain | {"echo": True}),
        (Need.TOOLS, chat | {"tools": [tool]}),
        (Need.FORCED_TOOL, chat | {"tools": [tool], "tool_choice": forced}),
        (Need.REQUIRED_TOOL, chat | {"tools": [tool], "tool_choice": "required"}),
        (Need.JSON_OBJECT, asks_for_json | {"response_format": {"type": "json_object"}}),
        (Need.JSON_SCHEMA, asks_for_json | {"response_format": schema}),
        (Need.STRUCTURED_OUTPUTS, chat | {"structured_outputs": {"choice": ["yes", "no"]}}),
        (Need.LOGIT_BIAS, base | {"logit_bias": {"1": -100}}),
        (Need.IGNORE_EOS, base | {"ignore_eos": True}),
    ):
        answer = await _ask(server, facts, need, body) or answer
    if answer is None or answer.status != 200 or "cached_tokens" not in answer.raw.decode(errors="replace"):
        facts.lacking[Need.CACHED_TOKENS] = "usage tells no cached tokens"


async def _ask_about_responses(server: Server, facts: Facts) -> None:
    body: dict[str, Any] = {"model": facts.model, "input": QUESTION, "max_output_tokens": 16, "store": False}
    answer = await _ask_at(server, facts, Need.RESPONSES, "/v1/responses", body)
    wanted = (Need.RESPONSES_CALL, Need.STORED_RESPONSES, Need.INPUT_TOKENS)
    if answer is None:
        facts.lacking |= dict.fromkeys(wanted, facts.lacking[Need.RESPONSES])
        return
    tool = {"type": "function", "name": "probe", "parameters": {"type": "object", "properties": {}}, "strict": False}
    forced = {"tools": [tool], "tool_choice": {"type": "function", "name": "probe"}}
    await _ask_at(server, facts, Need.RESPONSES_CALL, "/v1/responses", body | forced)
    counted = {"model": facts.model, "input": QUESTION}
    await _ask_at(server, facts, Need.INPUT_TOKENS, "/v1/responses/input_tokens", counted)
    kept = await _ask_at(server, facts, Need.STORED_RESPONSES, "/v1/responses", body | {"store": True})
    told = kept.json if kept is not None and kept.status == 200 else {}
    if isinstance(told, dict) and isinstance(told.get("id"), str):
        chained = body | {"previous_response_id": told["id"]}
        await _ask_at(server, facts, Need.STORED_RESPONSES, "/v1/responses", chained)


async def _ask_about_messages(server: Server, facts: Facts) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    body: dict[str, Any] = {"model": facts.model, "messages": messages, "max_tokens": 16}
    answer = await _ask_at(server, facts, Need.MESSAGES, "/v1/messages", body)
    if answer is None:
        facts.lacking |= dict.fromkeys((Need.MESSAGES_CALL, Need.COUNT_TOKENS), facts.lacking[Need.MESSAGES])
        return
    tool = {"name": "probe", "input_schema": {"type": "object", "properties": {}}}
    forced = {"tools": [tool], "tool_choice": {"type": "tool", "name": "probe"}}
    await _ask_at(server, facts, Need.MESSAGES_CALL, "/v1/messages", body | forced)
    counted = {"model": facts.model, "messages": messages}
    await _ask_at(server, facts, Need.COUNT_TOKENS, "/v1/messages/count_tokens", counted)


async def _ask_at(server: Server, facts: Facts, need: Need, path: str, body: dict[str, Any]) -> Answer | None:
    """The answer if it was not a refusal."""
    headers = {"anthropic-version": "2023-06-01"} if path.startswith("/v1/messages") else {}
    answer = await server.send(server.exchange("POST", path, orjson.dumps(body), headers))
    if answer.is_refusal and answer.status != 429:
        facts.lacking[need] = f"refused with HTTP {answer.status}: {answer.error_message}"
        return None
    return answer


async def _ask(server: Server, facts: Facts, need: Need, body: dict[str, Any]) -> Answer | None:
    """The answer if it was not a refusal."""
    endpoint = Need.CHAT if "messages" in body else Need.COMPLETIONS
    if not facts.has(endpoint):
        facts.lacking[need] = facts.lacking[endpoint]
        return None
    return await _ask_at(server, facts, need, str(endpoint), body)


async def _ask_about_surroundings(server: Server, facts: Facts) -> None:
    if await tokenize(server, facts.model, "hello") is None:
        facts.lacking[Need.TOKENIZE] = "no /tokenize that answers with token ids"
    answer = await server.send(server.exchange("GET", "/metrics"))
    text = answer.raw.decode(errors="replace") if answer.status == 200 else ""
    if reading(text, RUNNING) is None:
        facts.lacking[Need.RUNNING_METRIC] = "/metrics has no known gauge of running requests"
    if reading(text, KV_USAGE) is None:
        facts.lacking[Need.KV_METRIC] = "/metrics has no known gauge of KV cache usage"


async def tokenize(server: Server, model: str, text: str, *, special: bool = True) -> list[int] | None:
    """Token ids of `text`, which is not empty, in the dialects of vLLM (`prompt`) and llama.cpp (`content`)."""
    flags = {"add_special_tokens": special, "add_special": special}
    return await server.tokenize({"model": model, "prompt": text, "content": text, **flags}) or None


async def _version(server: Server) -> str:
    """What /version says, if anything."""
    try:
        answer = await server.send(server.exchange("GET", "/version"))
        return str(orjson.loads(answer.raw)["version"]) if answer.status == 200 else ""
    except (*CLIENT_ERRORS, ValueError, KeyError, TypeError):
        return ""
