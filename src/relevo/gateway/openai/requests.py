"""From checked fields and token ids to engine requests: salt, seed, names, the text options."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from relevo.core.ids import RequestId, TokenId
from relevo.core.request import BATCH_PRIORITY, EngineRequest
from relevo.gateway.http.call import Call
from relevo.gateway.openai.sampling import for_prompt, resolve_sampling
from relevo.gateway.openai.schemas import ChatFields, GenerationFields
from relevo.gateway.openai.terms import priority_of, service_terms
from relevo.gateway.text.generation import TextGeneration, TextOptions
from relevo.gateway.text.served_models import ServedModel
from relevo.gateway.text.stop_strings import StopStrings
from relevo.policy.routing.affinity import affinity_of

EXPLAIN_HEADER = "x-relevo-explain"  # of a request: any value asks for
ROUTE_HEADER = "x-relevo-route"  # of its response: who decodes, who computed the prompt, and why
SESSION_FIELDS = ("session_id", "prompt_cache_key", "promptCacheKey", "metadata")


def response_id(call: Call, fields: GenerationFields, prefix: str) -> str:
    """The `id` of the answer; follows the client's own request id if it sent one."""
    return f"{prefix}-{fields.request_id or call.request_id}"


def cache_salt(tenant: str, salt: str | None) -> bytes:
    """What keeps the KV blocks of one tenant, or of one `cache_salt`, from another; empty: shared by all."""
    if not tenant and salt is None:
        return b""
    return hashlib.sha256(f"{tenant}\0{salt or ''}".encode()).digest()


def new_generations(
    call: Call,
    served: ServedModel,
    fields: GenerationFields,
    prompts: Sequence[list[TokenId]],
    *,
    model: str,
    num_logprobs: int | None,
    default_max_tokens: int | None,
    continues_text: bool,
) -> tuple[TextGeneration, ...]:
    """One engine request per prompt, not yet running. Raises InvalidRequest."""
    shared = resolve_sampling(
        fields,
        num_logprobs=num_logprobs,
        vocab_size=served.vocab_size,
        generation_defaults=served.generation_defaults,
    )
    terms = service_terms(call.request.headers, fields.service_tier, call.tenant)
    priority = priority_of(call.request.headers, fields.priority, call.caller.best_priority)
    options = TextOptions(
        stop_strings=_stop_strings(fields.stop),
        include_stop_string=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        continues_text=continues_text,
        min_tokens=fields.min_tokens,
        stop_token_ids=shared.stop_token_ids,
    )

    def generation(prompt_index: int, token_ids: list[TokenId]) -> TextGeneration:
        request = EngineRequest(
            request_id=RequestId(uuid.uuid4().hex),  # never the client's: it must be unique
            prompt_token_ids=tuple(token_ids),
            sampling=for_prompt(
                shared,
                fields,
                num_room_tokens=served.max_model_len - len(token_ids),
                default_max_tokens=default_max_tokens or served.generation_defaults.get("max_new_tokens"),
                drawn_seed=served.draw_seed(),
            ),
            eos_token_ids=served.eos_token_ids,
            salt=cache_salt(call.tenant, fields.cache_salt),
            priority=priority + BATCH_PRIORITY if terms.is_batch else priority,
            terms=terms,
            arrived_at_ns=call.accepted_at_ns,
            session=_session(call, fields, token_ids, model),
        )
        return TextGeneration(
            served,
            call.context,
            request,
            options,
            model=model,
            prompt_index=prompt_index,
            is_streamed=fields.stream,
            on_first_output=_explainer(call, served, request.request_id),
        )

    return tuple(generation(index, token_ids) for index, token_ids in enumerate(prompts))


def _session(call: Call, fields: GenerationFields, token_ids: list[TokenId], model: str) -> bytes:
    """What the router knows the conversation by."""
    body: dict[str, Any] = {name: getattr(fields, name) for name in SESSION_FIELDS}
    if isinstance(fields, ChatFields):
        body |= {"messages": fields.messages, "tools": fields.tools}
    else:
        body |= {"prompt": token_ids}
    affinity = affinity_of(
        call.request.headers,
        body,
        tenant=call.tenant,
        model=model,
        extra_headers=call.context.affinity_headers,
    )
    return affinity.key


def _explainer(call: Call, served: ServedModel, request_id: RequestId) -> Callable[[], None] | None:
    """Adds the router's reasons to the response, for a client that asks for them."""
    explain = served.explain_route
    if explain is None or not call.request.headers.get(EXPLAIN_HEADER):
        return None

    def note() -> None:
        earlier = call.reply_headers.get(ROUTE_HEADER)
        here = explain(request_id)
        call.reply_headers[ROUTE_HEADER] = f"{earlier} || {here}" if earlier else here

    return note


def _stop_strings(stop: str | list[str] | None) -> StopStrings | None:
    stops = [stop] if isinstance(stop, str) else stop
    return StopStrings(stops) if stops else None
