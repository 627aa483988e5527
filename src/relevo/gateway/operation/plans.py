"""GET /v1/plan: what the planner of each model decided, why, and what came of it."""

from __future__ import annotations

from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response


async def show_plan(call: Call) -> Response:
    """Empty where no planner runs (--planner off)."""
    return json_response({"plans": [plan() for plan in call.context.plans]})
