"""The paths of operators and probes; their errors look like OpenAI's."""

from __future__ import annotations

from starlette.responses import Response

from relevo import __version__
from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.http.route import Route
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.operation.admin import drain_worker
from relevo.gateway.operation.nodes import DrainNodeFields, drain_node, show_nodes
from relevo.gateway.operation.plans import show_plan
from relevo.gateway.operation.readiness import health, ready
from relevo.gateway.operation.roles import RoleFields, set_role
from relevo.gateway.operation.usage import show_usage
from relevo.telemetry.text_format import format_for


async def version(call: Call) -> Response:
    return json_response({"version": __version__})


async def metrics(call: Call) -> Response:
    statuses = {served.name: served.generator.status() for served in call.context.models}
    others, text = call.context.others, format_for(call.request.headers.get("accept", ""))
    if others is None:
        body, content_type = call.context.metrics.render(statuses, text)
    else:
        found = await others.metrics()
        body, content_type = call.context.metrics.render_merged(statuses, others.gateway_id, found, text)
    return Response(body, headers={"content-type": content_type, "vary": "accept"})


OPERATION_ROUTES = (
    Route("GET", "/v1/usage", show_usage, OPENAI_ERRORS, query=("since", "until", "group_by", "key")),
    Route("POST", "/admin/drain/*", drain_worker, OPENAI_ERRORS, statuses=(202,)),
    Route("GET", "/v1/plan", show_plan, OPENAI_ERRORS),
    Route("GET", "/v1/nodes", show_nodes, OPENAI_ERRORS),
    Route("POST", "/admin/drain-node/*", drain_node, OPENAI_ERRORS, request=DrainNodeFields, statuses=(202,)),
    Route("POST", "/admin/role/*", set_role, OPENAI_ERRORS, request=RoleFields, statuses=(202,)),
    Route("GET", "/health", health, OPENAI_ERRORS, is_open=True, query=("model",), statuses=(200, 503), errors=(404,)),
    Route("GET", "/ready", ready, OPENAI_ERRORS, is_open=True, query=("model",), statuses=(200, 503), errors=(404,)),
    Route("GET", "/version", version, OPENAI_ERRORS, is_open=True),
    Route("GET", "/metrics", metrics, OPENAI_ERRORS, is_open=True, media_type="text/plain", errors=(401,)),
)
