"""GET /openapi.json and GET /docs: open without a key, as vLLM's are. They tell nothing that is not in the guides.

What makes them is imported when they are first asked for: no answer of a model needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import orjson
from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import ErrorFormat
from relevo.gateway.http.route import Route


def document_routes(routes: Sequence[Route], error_format: ErrorFormat) -> tuple[Route, ...]:
    """Of the document of `routes` and of these two; it is made when it is first asked for."""

    async def openapi(call: Call) -> Response:
        """This server's paths as an OpenAPI document."""
        return Response(as_json(), media_type="application/json")

    async def docs(call: Call) -> Response:
        """This server's paths as a page."""
        from relevo.gateway.openapi.page import CONTENT_SECURITY_POLICY

        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"}
        return Response(as_page(), media_type="text/html", headers=headers)

    @cache
    def as_json() -> bytes:
        from relevo.gateway.openapi.document import openapi_document

        return orjson.dumps(openapi_document((*routes, *own)))

    @cache
    def as_page() -> bytes:
        from relevo.gateway.openapi.page import page

        return page(orjson.loads(as_json()))

    own = (
        Route("GET", "/openapi.json", openapi, error_format, is_open=True),
        Route("GET", "/docs", docs, error_format, is_open=True, media_type="text/html"),
    )
    return own
