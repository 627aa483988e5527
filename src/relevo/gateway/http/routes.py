"""The paths of the gateway, and the handlers that generate nothing.

Does not know how calls reach it or how errors leave; that is `gateway.http.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from relevo import __version__
from relevo.gateway.http.admin import drain_worker
from relevo.gateway.http.call import Call
from relevo.gateway.http.readiness import health, ready
from relevo.gateway.http.replies import json_response
from relevo.gateway.http.usage import show_usage
from relevo.gateway.openai.chat import chat_completions
from relevo.gateway.openai.completions import completions
from relevo.gateway.openai.logprobs import token_text
from relevo.gateway.openai.prompts import tokenize_token_ids
from relevo.gateway.openai.sampling import check_token_ids
from relevo.gateway.openai.schemas import DetokenizeFields, TokenizeFields
from relevo.gateway.text.served_models import ServedModel

Handler = Callable[[Call], Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # ends with "/*": takes the rest of the path, slashes included
    handler: Handler


async def root(call: Call) -> Response:
    """Clients probe it before they start."""
    return json_response({"name": "relevo", "version": __version__, "models": list(call.context.models.names)})


async def version(call: Call) -> Response:
    return json_response({"version": __version__})


async def metrics(call: Call) -> Response:
    statuses = {served.name: served.generator.status() for served in call.context.models}
    others = call.context.others
    if others is None:
        body, content_type = call.context.metrics.render(statuses)
    else:
        found = await others.metrics()
        body, content_type = call.context.metrics.render_merged(statuses, others.gateway_id, found)
    return Response(body, headers={"content-type": content_type})


async def list_models(call: Call) -> Response:
    data = [_model_card(call, served, name) for served in call.context.models for name in served.names]
    return json_response({"object": "list", "data": data})


async def show_model(call: Call) -> Response:
    name = call.path_rest or "(no name)"
    return json_response(_model_card(call, call.context.models.find(name), name))


def _model_card(call: Call, served: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": call.context.started_at_unix_s,
        "owned_by": "relevo",
        "root": served.name,
        "parent": None,
        "max_model_len": served.max_model_len,
        "default_sampling_params": dict(served.generation_defaults),
        "permission": [],
    }


async def tokenize(call: Call) -> Response:
    def work(body: bytes) -> Response:
        fields = call.parse(body, TokenizeFields)
        served, _ = call.context.models.meant_by(fields.model)
        token_ids = tokenize_token_ids(served, fields)
        names = [token_text(served.tokenizer, i) for i in token_ids] if fields.return_token_strs else None
        return json_response(
            {
                "count": len(token_ids),
                "max_model_len": served.max_model_len,
                "tokens": token_ids,
                "token_strs": names,
            }
        )

    return await call.read(work, call.context.max_tokenize_bytes)


async def detokenize(call: Call) -> Response:
    def work(body: bytes) -> Response:
        fields = call.parse(body, DetokenizeFields)
        tokenizer = call.context.models.meant_by(fields.model)[0].tokenizer
        return json_response(
            {"prompt": tokenizer.decode(check_token_ids(fields.tokens, tokenizer.vocab_size, "tokens"))}
        )

    return await call.read(work, call.context.max_tokenize_bytes)


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/*", show_model),
    Route("GET", "/v1/usage", show_usage),
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("POST", "/admin/drain/*", drain_worker),
    Route("GET", "/health", health),
    Route("GET", "/ready", ready),
    Route("GET", "/version", version),
    Route("GET", "/metrics", metrics),
    Route("GET", "/", root),
)
