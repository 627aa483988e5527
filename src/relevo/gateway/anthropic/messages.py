"""POST /v1/messages and /v1/messages/count_tokens. Source: Anthropic API reference, "Messages".

A count is of the very tokens that the same request would have as its prompt.
"""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from relevo.gateway.anthropic.errors import REQUEST_ID_HEADER
from relevo.gateway.anthropic.events import PING_S
from relevo.gateway.anthropic.requests import chat_prompt, output_format_of
from relevo.gateway.anthropic.schemas import FIELDS_WITHOUT_EFFECT, ConversationFields, MessagesFields
from relevo.gateway.anthropic.writer import MessageWriter
from relevo.gateway.generation.answer import answer
from relevo.gateway.generation.grammar import text_cost
from relevo.gateway.generation.prepare import Prepared, prepare
from relevo.gateway.generation.prompts import count_tokens
from relevo.gateway.generation.spec import GenerationSpec
from relevo.gateway.generation.terms import BATCH_TIERS
from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response


async def create_message(call: Call) -> Response | None:
    """Answer one request. Raises RelevoError, ClientGone."""
    call.reply_headers[REQUEST_ID_HEADER] = call.request_id
    return await answer(call, *await call.read(partial(_prepare, call), cost=text_cost), max_silence_s=PING_S)


async def count_message_tokens(call: Call) -> Response:
    """Raises RelevoError, ClientGone."""
    call.reply_headers[REQUEST_ID_HEADER] = call.request_id
    return json_response({"input_tokens": await call.read(partial(_count, call))})


def _prepare(call: Call, body: bytes) -> tuple[Prepared, MessageWriter]:
    """What is left of the body when this returns is the request's alone. Raises RelevoError."""
    fields = call.parse(body, MessagesFields, FIELDS_WITHOUT_EFFECT)
    served, model = call.context.models.meant_by(fields.model)
    spec = GenerationSpec(
        prompts=[chat_prompt(call, fields)],
        sampling=fields,
        output_format=output_format_of(fields),
        stop_strings=fields.stop_sequences,
        is_streamed=fields.stream,
        service_tier=fields.service_tier,
        session={"metadata": fields.metadata},
    )
    prepared = prepare(call, served, model, spec)
    tier = "batch" if prepared.service_tier in BATCH_TIERS else "standard"
    return prepared, MessageWriter(f"msg_{call.request_id}", call.request_id, model, prepared.usage, tier)


def _count(call: Call, body: bytes) -> int:
    fields = call.parse(body, ConversationFields, FIELDS_WITHOUT_EFFECT)
    served, _ = call.context.models.meant_by(fields.model)
    output_format_of(fields)
    return count_tokens(served, chat_prompt(call, fields), call.context.max_tokenize_bytes)
