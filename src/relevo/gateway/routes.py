"""The paths of the gateway, and the handlers that generate nothing.

Does not know how calls reach it or how errors leave; that is `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from relevo import __version__
from relevo.gateway.call import Call, run_text_work
from relevo.gateway.openai.chat import chat_completions
from relevo.gateway.openai.completions import completions
from relevo.gateway.openai.logprobs import token_text
from relevo.gateway.openai.prompts import tokenize_token_ids
from relevo.gateway.openai.sampling import check_token_ids
from relevo.gateway.openai.schemas import DetokenizeFields, TokenizeFields
from relevo.gateway.usage import show_usage

Handler = Callable[[Call], Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # ends with "/*": takes the rest of the path, slashes included
    handler: Handler


def json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


async def root(call: Call) -> Response:
    """Clients probe it before they start."""
    return json_response({"name": "relevo", "version": __version__, "models": list(call.context.model_names)})


async def version(call: Call) -> Response:
    return json_response({"version": __version__})


async def health(call: Call) -> Response:
    """200 while at least one worker lives, with an empty body unless something else keeps requests out.

    A ledger that cannot be written does not make it 503: a restart would lose the rows that wait.
    """
    status = call.context.generator.status()
    if any(worker.ready for worker in status.workers):
        if call.context.meter.failure:
            return json_response({"status": "degraded", "reason": call.context.meter.failure})
        return Response(status_code=200)
    return json_response({"status": "unavailable", "reason": status.reason or "no worker is alive"}, 503)


async def ready(call: Call) -> Response:
    """200 exactly when a request sent now would be served."""
    status = call.context.generator.status()
    workers = [
        {
            "worker_id": w.worker_id,
            "role": w.role,
            "ready": w.ready,
            "epoch": w.epoch,
            "pid": w.pid,
            "address": w.address,
        }
        for w in status.workers
    ]
    meter_failure = call.context.meter.failure
    if status.ready and not meter_failure:
        return json_response({"ready": True, "workers": workers})
    reason = status.reason or meter_failure or "no worker is ready"
    return json_response({"ready": False, "reason": reason, "workers": workers}, 503)


async def metrics(call: Call) -> Response:
    body, content_type = call.context.metrics.render(call.context.generator.status())
    return Response(body, headers={"content-type": content_type})


async def list_models(call: Call) -> Response:
    data = [_model_card(call, name) for name in call.context.model_names]
    return json_response({"object": "list", "data": data})


async def show_model(call: Call) -> Response:
    return json_response(_model_card(call, call.model_name(call.path_rest or "(no name)")))


def _model_card(call: Call, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": call.context.started_at_unix_s,
        "owned_by": "relevo",
        "root": call.context.model_names[0],
        "parent": None,
        "max_model_len": call.context.max_model_len,
        "permission": [],
    }


async def tokenize(call: Call) -> Response:
    fields, num_bytes = await call.read(TokenizeFields)
    call.model_name(fields.model)
    token_ids = await run_text_work(num_bytes, lambda: tokenize_token_ids(call.context, fields))
    names = [token_text(call.context.tokenizer, i) for i in token_ids] if fields.return_token_strs else None
    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": call.context.max_model_len,
            "tokens": token_ids,
            "token_strs": names,
        }
    )


async def detokenize(call: Call) -> Response:
    fields, num_bytes = await call.read(DetokenizeFields)
    call.model_name(fields.model)
    tokenizer = call.context.tokenizer
    token_ids = check_token_ids(fields.tokens, tokenizer.vocab_size, "tokens")
    return json_response({"prompt": await run_text_work(num_bytes, lambda: tokenizer.decode(token_ids))})


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", list_models),
    Route("GET", "/v1/models/*", show_model),
    Route("GET", "/v1/usage", show_usage),
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("GET", "/health", health),
    Route("GET", "/ready", ready),
    Route("GET", "/version", version),
    Route("GET", "/metrics", metrics),
    Route("GET", "/", root),
)
