"""GET / and GET /console/*: the page for browsers. Programs that ask for / are told name, version and models.

Open without a key: the page has nothing of the server in it, what it shows it asks for with the viewer's key.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from relevo import __version__
from relevo.gateway.console.page_files import HEADERS, PageFile, page, page_files
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import NotFound
from relevo.gateway.http.replies import json_response
from relevo.gateway.http.route import Route
from relevo.gateway.openai.errors import OPENAI_ERRORS


async def show_root(call: Call) -> Response:
    """Name, version and models, which clients probe before they start; to a browser, the console."""
    if prefers_html(call.request.headers.getlist("accept")):
        reply = _reply(call, page(needs_key=not call.context.api_keys.is_open))
    else:
        models = list(call.context.models.names)
        reply = json_response({"name": "relevo", "version": __version__, "models": models})
    reply.headers["vary"] = "Accept"
    return reply


async def show_file(call: Call) -> Response:
    """A file of the console. Raises NotFound."""
    found = page_files().get(call.path_rest)
    if found is None:
        raise NotFound(f"The console has no file {call.path_rest!r}; its page is at /.")
    return _reply(call, found)


def prefers_html(accept: Sequence[str]) -> bool:
    """Whether an Accept header ranks HTML above JSON, each by the most specific range that names it."""
    ranges = [_range(each) for line in accept for each in line.split(",")]
    weights = dict(reversed(ranges))  # of a range that is named twice, the first
    return _weight(weights, "text/html", "text/*") > _weight(weights, "application/json", "application/*")


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
    try:
        return name, min(1.0, max(0.0, float(weight)))
    except ValueError:
        return name, 0.0


def _weight(weights: dict[str, float], *names: str) -> float:
    return next((weights[name] for name in (*names, "*/*") if name in weights), 0.0)


def _reply(call: Call, found: PageFile) -> Response:
    headers = {**HEADERS, "etag": found.etag}
    asked = call.request.headers.get("if-none-match", "")
    if found.etag in (each.strip().removeprefix("W/") for each in asked.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers={**headers, "content-type": found.media_type})


PAGE_ROUTES = (
    Route("GET", "/", show_root, OPENAI_ERRORS, is_open=True),
    Route("GET", "/console/*", show_file, OPENAI_ERRORS, is_open=True, media_type="*/*", errors=(404,)),
)
