"""POST /v1/responses, and how many tokens one would be read as. Source: OpenAI API reference, "Responses"."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response

from relevo.core.errors import InvalidRequest, RelevoError
from relevo.core.told_values import as_sent
from relevo.gateway.answers.store import StoredAnswer
from relevo.gateway.generation.answer import answer
from relevo.gateway.generation.prepare import Prepared, prepare
from relevo.gateway.generation.prompts import count_tokens
from relevo.gateway.generation.reasoning import with_effort
from relevo.gateway.generation.spec import ChatPrompt, GenerationSpec, OutputFormat
from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.responses import history
from relevo.gateway.responses.logprobs import text_logprobs
from relevo.gateway.responses.messages import chat_messages
from relevo.gateway.responses.output_items import OutputItems
from relevo.gateway.responses.schemas import ResponseFields
from relevo.gateway.responses.sealed import Seal
from relevo.gateway.responses.shape import ResponseShape, repeated
from relevo.gateway.responses.tools import DeclaredTools, declared_tools, tool_choice
from relevo.gateway.responses.writer import ResponseWriter
from relevo.gateway.text.served_models import ServedModel
from relevo.gateway.text.text_work import INLINE_BYTES

SEALED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"  # of `include`
_REFUSED = {
    "background": "a response is made while its client waits; send 'background': false",
    "conversation": "conversations are not kept here; use 'previous_response_id', or send the items as 'input'",
    "prompt": "there are no stored prompts here; send the text as 'instructions' and 'input'",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was read; `num_bytes` of text, one that may want a grammar counted as long."""

    fields: ResponseFields
    num_bytes: int


async def create_response(call: Call) -> Response | None:
    """Raises RelevoError, ClientGone."""
    asked = await call.read(partial(_read, call))
    fields, answers = asked.fields, call.context.answers
    if not fields.model:
        names = ", ".join(call.context.models.names)
        raise InvalidRequest(f"Missing required field 'model'. Models of this server: {names}.", param="model")
    before = await history.answers_before(answers, call.tenant, fields)
    fields.store = fields.store and answers.keeps
    base = history.new_base()
    prepared, writer, items = await call.context.text_work.run(
        asked.num_bytes + _num_chars(before), partial(_prepare, call, fields, before, base), call.tenant
    )

    async def keep() -> None:
        assert writer.ended is not None, "it has ended"
        await answers.keep(history.stored(base, call.tenant, fields, items, writer.ended))

    return await answer(call, prepared, writer, keep if fields.store else None)


async def count_input_tokens(call: Call) -> Response:
    """As many as the usage of the same request would say."""
    asked = await call.read(partial(_read, call))
    before = await history.answers_before(call.context.answers, call.tenant, asked.fields)

    def count() -> Response:
        served, _ = call.context.models.meant_by(asked.fields.model)
        with _named_as_sent():
            prompt, _ = _prompt(call, asked.fields, history.conversation(asked.fields, before))
            num_tokens = count_tokens(served, prompt, call.context.max_tokenize_bytes)
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})

    return await call.context.text_work.run(asked.num_bytes + _num_chars(before), count, call.tenant)


def _num_chars(answers: Sequence[StoredAnswer]) -> int:
    return sum(len(answer.asked) + len(answer.body) for answer in answers)


def _read(call: Call, body: bytes) -> Asked:
    fields = call.parse(body, ResponseFields)
    for name, why in _REFUSED.items():
        if getattr(fields, name):
            raise InvalidRequest(f"'{name}' is not supported: {why}.", param=name)
    if not fields.input and fields.previous_response_id is None:
        raise InvalidRequest("Missing required field 'input'.", param="input")
    call.field_warnings.note(f"include.{name}" for name in fields.include if name not in (SEALED, LOGPROBS))
    if fields.truncation not in (None, "disabled"):
        call.field_warnings.note(["truncation"])
    wants_grammar = bool(fields.tools or fields.text.format)
    return Asked(fields, max(len(body), INLINE_BYTES + 1) if wants_grammar else len(body))


def _prepare(
    call: Call, fields: ResponseFields, before: Sequence[StoredAnswer], base: str
) -> tuple[Prepared, ResponseWriter, bytes]:
    """And what is kept of the request. Raises RelevoError."""
    served, model = call.context.models.meant_by(fields.model)
    prompt, tools = _prompt(call, fields, history.conversation(fields, before))
    num_logprobs = fields.top_logprobs if fields.top_logprobs or LOGPROBS in fields.include else None
    with _named_as_sent():
        prepared = _prepared(call, served, model, _spec(fields, prompt, num_logprobs), tools)
    seal = Seal(call.context.sealing_key, call.tenant).close if SEALED in fields.include else None
    sampling = prepared.runs[0].request.sampling
    writer = ResponseWriter(
        shape=ResponseShape(
            id=history.response_id(base), repeated=repeated(fields, model, sampling, created_at=int(time.time()))
        ),
        items=OutputItems(base, tools, seal),
        usage=prepared.usage,
        now_s=lambda: int(time.time()),
        logprobs_of=None if num_logprobs is None else partial(text_logprobs, served.tokenizer, num_logprobs),
    )
    return prepared, writer, history.asked_json(fields, base) if fields.store else b""


def _prepared(call: Call, served: ServedModel, model: str, spec: GenerationSpec, tools: DeclaredTools) -> Prepared:
    """Functions are strict where they say nothing; but where a schema cannot be held, those are not, as in the official
    API, and only one that says so is refused."""
    try:
        return prepare(call, served, model, spec)
    except InvalidRequest as error:
        if not tools.assumed_strict or not (error.param or "").startswith("tools"):
            raise
    call.field_warnings.note(["tools.strict"])
    (prompt,) = spec.prompts
    assert isinstance(prompt, ChatPrompt), "a response is to a conversation"
    return prepare(call, served, model, replace(spec, prompts=[replace(prompt, tools=tools.loosened())]))


def _prompt(call: Call, fields: ResponseFields, before: history.Items) -> tuple[ChatPrompt, DeclaredTools]:
    note = call.field_warnings.note
    tools = declared_tools(fields.tools, note)
    choice = tool_choice(fields.tool_choice, tools, is_parallel=fields.parallel_tool_calls)
    given = [{"role": "user", "content": fields.input}] if isinstance(fields.input, str) else fields.input or []
    seal = Seal(call.context.sealing_key, call.tenant)
    messages = chat_messages(fields.instructions, before, given, tools, seal, note)
    template_kwargs = with_effort(fields.chat_template_kwargs, fields.reasoning.effort, param="reasoning.effort")
    if fields.text.verbosity is not None:
        template_kwargs.setdefault("verbosity", fields.text.verbosity)
    prompt = ChatPrompt(messages=messages, tools=tools.shown, tool_choice=choice, template_kwargs=template_kwargs)
    return prompt, tools


def _spec(fields: ResponseFields, prompt: ChatPrompt, num_logprobs: int | None) -> GenerationSpec:
    fields.max_tokens = fields.max_output_tokens or fields.max_tokens
    client = fields.client_metadata if isinstance(fields.client_metadata, dict) else {}
    return GenerationSpec(
        prompts=[prompt],
        sampling=fields,
        num_logprobs=num_logprobs,
        output_format=_output_format(fields),
        tells_tokens=num_logprobs is not None,
        is_streamed=fields.stream,
        priority=fields.priority,
        service_tier=fields.service_tier,
        cache_salt=fields.cache_salt,
        session={
            "session_id": fields.session_id or client.get("session_id"),
            "prompt_cache_key": fields.prompt_cache_key,
            "promptCacheKey": fields.promptCacheKey,
            "metadata": fields.metadata,
        },
    )


def _output_format(fields: ResponseFields) -> OutputFormat | None:
    asked: dict[str, Any] = fields.text.format or {"type": "text"}
    kind = asked.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat(kind="json_object", param="text.format")
    if kind != "json_schema":
        raise InvalidRequest(
            f"'text.format.type' must be 'text', 'json_object' or 'json_schema', got {as_sent(kind)}.",
            param="text.format.type",
        )
    schema = asked.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest("'text.format.schema' must be a JSON schema.", param="text.format.schema")
    return OutputFormat(kind="json_schema", value=schema, is_strict=bool(asked.get("strict")), param="text.format")


@contextmanager
def _named_as_sent() -> Iterator[None]:
    """Errors of a conversation name the field that it came in."""
    try:
        yield
    except RelevoError as error:
        if error.param is not None and error.param.partition("[")[0] == "messages":
            error.param = "input"
        raise
