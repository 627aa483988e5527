"""GET /v1/models and /v1/models/NAME, for clients of Anthropic's API. Source: Anthropic API reference, "Models".

All models are one page. `created_at`, which clients want to be a date, is when serving began.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.text.served_models import ServedModel


async def list_models(call: Call) -> Response:
    data = [_card(call, served, name) for served in call.context.models for name in served.names]
    return json_response({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})


async def show_model(call: Call) -> Response:
    name = call.path_rest or "(no name)"
    return json_response(_card(call, call.context.models.find(name), name))


def _card(call: Call, served: ServedModel, name: str) -> dict[str, Any]:
    started_at = datetime.fromtimestamp(call.context.started_at_unix_s, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": started_at.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": served.max_model_len - 1,
        "max_tokens": served.max_model_len - 1,
    }
