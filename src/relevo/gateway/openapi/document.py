"""The OpenAPI document of a route table: what may be sent to each path, what comes back, and with which errors.

Everything is derived: paths and keys from `Route`, bodies from the structs that read them, errors from what each API's
`ErrorFormat` writes. Knows no API. Source: OpenAPI Specification 3.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from relevo import __version__
from relevo.core.errors import InvalidRequest, RelevoError
from relevo.gateway.http.errors import BadHttp, ErrorFormat, MethodNotAllowed, status_of
from relevo.gateway.http.route import OPEN_END, VERSION_PREFIX, Route

Document = dict[str, Any]

DESCRIPTION = (
    f"Paths below {VERSION_PREFIX} are answered without it, too. A member that is not listed is ignored, null means "
    "that a member is not given. Where a body has `stream`, true brings server-sent events instead of one JSON body."
)
MEANINGS: Mapping[int, str] = {
    200: "The answer.",
    202: "It was asked for and goes on.",
    400: "Something in the request cannot be meant so; the message says what, `param` or the message where.",
    401: "No API key, or one that is not valid here.",
    403: "The key is valid and not for this, or the request comes from a page of another site.",
    404: "There is no such model, or nothing of that name.",
    408: "The request did not come in time.",
    413: "The body is too large.",
    414: "The request line is too long.",
    429: "There is no room now, or a limit of the key is reached; Retry-After says when to come back.",
    431: "The headers are too large.",
    500: "The server failed.",
    501: "A method or transfer coding that is not spoken here.",
    502: "A worker or a region answered what cannot be read.",
    503: "Not ready, stopping, or no worker can take the request; Retry-After says when to come back.",
    504: "The time that the client allowed was over.",
    505: "Another version of HTTP.",
    529: "There is no room now; Retry-After says when to come back.",
}
OF_ALL = (400, 403, 408, 414, 431, 500, 501, 503, 505)  # whatever is asked: by connections, too
OF_GUARDED = (401, 404, 429)
OF_BODIES = (413, 429)
OF_GENERATION = (502, 504)
_REF = "#/components/schemas/"


def openapi_document(routes: Sequence[Route]) -> Document:
    formats = {_format_name(route.error_format): route.error_format for route in routes}
    bodies = [route.request for route in routes if route.request is not None]
    structs = _request_schemas(bodies)
    errors = {name: _error_schema(each) for name, each in formats.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        methods = paths.setdefault(_path(route), {})
        operation, method = _operation(route, structs), route.method.lower()
        methods[method] = _either(methods[method], operation) if method in methods else operation
    return {
        "openapi": "3.1.1",
        "info": {"title": "Relevo", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**structs, **errors},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def statuses(route: Route) -> list[int]:
    """Every status that the path may be answered with, ascending."""
    meant = {*route.errors, *OF_ALL}
    meant.update(() if route.is_open else OF_GUARDED)
    meant.update(() if route.request is None else OF_BODIES)
    meant.update(OF_GENERATION if route.is_generation else ())
    of_connections = [BadHttp("", status) for status in meant]
    errors = [error for error in (*_one_of_each(RelevoError), *of_connections) if status_of(error) in meant]
    return sorted({*route.statuses, *(route.error_format.reply(error, "").status for error in errors)})


_ANSWERED_BY = ("relevo.core.", "relevo.gateway.")  # what boxes and engines say to each other is no API's answer


def _one_of_each(kind: type[RelevoError]) -> Iterator[RelevoError]:
    """An API may answer some errors with statuses of its own."""
    if kind not in (BadHttp, MethodNotAllowed) and kind.__module__.startswith(_ANSWERED_BY):
        yield kind("")
    for narrower in kind.__subclasses__():
        yield from _one_of_each(narrower)


def _either(first: Document, second: Document) -> Document:
    """Two routes at one path, of which a header chooses."""
    names = {each["name"] for each in first["parameters"]}
    added = [each for each in second["parameters"] if each["name"] not in names]
    responses = {**second["responses"], **first["responses"]}
    for status in first["responses"].keys() & second["responses"].keys():
        content = {**first["responses"][status]["content"]}
        for media_type, body in second["responses"][status]["content"].items():
            schemas = [each["schema"] for each in (content.get(media_type, body), body)]
            content[media_type] = body if schemas[0] == schemas[1] else {"schema": {"anyOf": schemas}}
        responses[status] = {**first["responses"][status], "content": content}
    return {**first, "parameters": [*first["parameters"], *added], "responses": dict(sorted(responses.items()))}


def _operation(route: Route, structs: Mapping[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": _summary(route.handler),
        "security": [] if route.is_open else [{"bearer": []}, {"apiKey": []}],
        "parameters": _parameters(route),
        "responses": {str(status): _response(route, status, structs) for status in statuses(route)},
    }
    if route.request is not None:
        schema = {"$ref": _REF + _name_of(route.request)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {name: value for name, value in operation.items() if value != ""}


def _response(route: Route, status: int, structs: Mapping[str, Any]) -> dict[str, Any]:
    described = {"description": MEANINGS[status]}
    if status not in route.statuses:
        schema = {"$ref": _REF + _format_name(route.error_format)}
        return {**described, "content": {"application/json": {"schema": schema}}}
    content: dict[str, Any] = {route.media_type: {"schema": {"type": "object"} if "json" in route.media_type else {}}}
    if route.request is not None and "stream" in structs[_name_of(route.request)]["properties"]:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {**described, "content": content}


def _parameters(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string"}
    found = [{"name": name, "in": "query", "required": False, "schema": text} for name in route.query]
    if route.header:
        found.append({"name": route.header, "in": "header", "required": False, "schema": text})
    if route.path.endswith(OPEN_END):
        found.append(
            {"name": "rest", "in": "path", "required": True, "schema": text, "description": "May have slashes."}
        )
    return found


def _path(route: Route) -> str:
    return route.path.removesuffix("*") + "{rest}" if route.path.endswith(OPEN_END) else route.path


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-z0-9]+", route.path.lower()) + (["rest"] if route.path.endswith(OPEN_END) else [])
    return "_".join([route.method.lower(), *words])


def _summary(handler: Callable[..., Any]) -> str:
    """The handler's own first sentence, without what it raises."""
    told = " ".join((handler.__doc__ or "").split())
    return re.split(r" ?\b(?:Raises|Query:)", told, maxsplit=1)[0].split(". ")[0].strip()


def _format_name(error_format: ErrorFormat) -> str:
    return type(error_format).__name__.removesuffix("s")


def _name_of(struct: type) -> str:
    return struct.__name__


def _error_schema(error_format: ErrorFormat) -> dict[str, Any]:
    """Of the body that the format really writes."""
    told = [(InvalidRequest("What to change.", param="field"), "the-request"), (InvalidRequest("What to change."), "")]
    return _schema_of([orjson.loads(error_format.reply(error, request_id).body) for error, request_id in told])


def _schema_of(values: Sequence[Any]) -> dict[str, Any]:
    """What all of these, objects of texts, are values of."""
    if isinstance(values[0], dict):
        properties = {name: _schema_of([value[name] for value in values]) for name in values[0]}
        return {"type": "object", "properties": properties, "required": list(values[0])}
    return {"type": ["string", "null"]} if None in values else {"type": "string"}


def _request_schemas(structs: Iterable[type]) -> dict[str, Any]:
    """By name. Null may stand for every member of a body, and patterns are written as ECMAScript has them."""
    bodies = list(dict.fromkeys(structs))
    _, components = msgspec.json.schema_components(bodies, ref_template=_REF + "{name}")
    for body in bodies:
        schema = components[_name_of(body)]
        schema.pop("title", None)
        required = schema.get("required", ())
        for name, member in schema["properties"].items():
            if name not in required:
                schema["properties"][name] = _or_null(member)
    found: dict[str, Any] = orjson.loads(orjson.dumps(components).replace(rb"\\Z", b"$"))
    return found


def _or_null(member: dict[str, Any]) -> dict[str, Any]:
    if not member or {"type": "null"} in member.get("anyOf", ()):
        return member
    default = {"default": member["default"]} if "default" in member else {}
    return {
        "anyOf": [{name: value for name, value in member.items() if name != "default"}, {"type": "null"}],
        **default,
    }
