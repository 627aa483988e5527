"""GET /v1/models and /v1/models/NAME. Source: OpenAI API reference, "Models"; vLLM's extensions."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.text.served_models import ServedModel


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
