"""The HTTP APIs of a gateway, one line each. docs/developers/api.md says how to add one."""

from __future__ import annotations

from relevo.gateway.anthropic.routes import ANTHROPIC_ROUTES
from relevo.gateway.console.page_routes import PAGE_ROUTES
from relevo.gateway.console.routes import CONSOLE_ROUTES
from relevo.gateway.http.route import RouteTable
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.openai.routes import OPENAI_ROUTES
from relevo.gateway.openapi.routes import document_routes
from relevo.gateway.operation.routes import OPERATION_ROUTES
from relevo.gateway.requests.routes import REQUEST_ROUTES
from relevo.gateway.responses.routes import RESPONSES_ROUTES

ROUTES = (
    *OPENAI_ROUTES,
    *RESPONSES_ROUTES,
    *ANTHROPIC_ROUTES,
    *OPERATION_ROUTES,
    *CONSOLE_ROUTES,
    *PAGE_ROUTES,
    *REQUEST_ROUTES,
)


def route_table() -> RouteTable:
    """Errors of paths that nothing is at look like OpenAI's."""
    return RouteTable((*ROUTES, *document_routes(ROUTES, OPENAI_ERRORS)), OPENAI_ERRORS)
