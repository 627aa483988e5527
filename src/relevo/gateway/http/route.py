"""A path of the gateway: which handler answers it, and how its errors look; and the table of all of them.

A path below /v1 is also answered without it, where nothing else is: `/chat/completions` is `/v1/chat/completions`. Some
clients are given the address of a server and add only the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass

from msgspec import Struct
from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import ErrorFormat, MethodNotAllowed, UnknownPath

OPEN_END = "/*"  # of a route that takes the rest of the path
MAX_SEGMENTS = 8  # more than any route has
VERSION_PREFIX = "/v1"  # that a client may leave out

Handler = Callable[[Call], Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # ends with "/*": takes the rest of the path, slashes included
    handler: Handler
    error_format: ErrorFormat
    is_open: bool = False  # asked for without a key, and while the server stops: by probes
    is_generation: bool = False  # its requests have sessions: an edge keeps one where its KV is
    request: type[Struct] | None = None  # what its body is read as; None: it has none. From here on: for its document
    query: tuple[str, ...] = ()  # names of parameters that it reads
    statuses: tuple[int, ...] = (200,)  # of answers that are no errors
    media_type: str = "application/json"  # of these
    errors: tuple[int, ...] = ()  # statuses beside those that all paths of its kind have
    header: str = ""  # not empty: answers requests with this header only, where another route has method and path too


class RouteTable:
    def __init__(self, routes: Sequence[Route], default_format: ErrorFormat) -> None:
        """`default_format`: of paths that nothing is at or above."""
        self._default_format = default_format
        self._guarded = {
            _first_segment(path)
            for route in routes
            if not route.is_open
            for path in (route.path, route.path.removeprefix(VERSION_PREFIX))
        }
        self._exact: dict[str, dict[str, Route]] = {}
        self._open_ended: dict[str, dict[str, Route]] = {}
        self._by_header: dict[tuple[str, str], list[Route]] = {}
        for route in routes:
            if route.header:
                self._by_header.setdefault((route.method, route.path), []).append(route)
                continue
            table = self._open_ended if route.path.endswith(OPEN_END) else self._exact
            table.setdefault(route.path.removesuffix("*"), {})[route.method] = route

    def find(self, method: str, path: str, headers: Container[str] = ()) -> tuple[Route, str]:
        """The route, and the rest of the path it takes. Raises UnknownPath, MethodNotAllowed."""
        by_method, rest = self._at(path)
        if not by_method:
            raise UnknownPath(f"There is nothing at {path}.")
        route = by_method.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = tuple(by_method) + (("HEAD",) if "GET" in by_method else ())
            raise MethodNotAllowed(f"{path} does not take {method}; use {' or '.join(allowed)}.", allowed)
        others = self._by_header.get((route.method, route.path), ())
        return next((other for other in others if other.header in headers), route), rest

    def error_format(self, path: str) -> ErrorFormat:
        """How errors on a path look, whatever went wrong before its handler was found.

        A path that nothing is at belongs to the API of the nearest path above it.
        """
        by_method, _ = self._at(path)
        segments = path.split("/", MAX_SEGMENTS)[:MAX_SEGMENTS]  # a client may send as many as a head holds
        while segments and not by_method:
            by_method, _ = self._at("/".join(segments))
            segments.pop()
        return next(iter(by_method.values())).error_format if by_method else self._default_format

    def is_generation(self, path: str) -> bool:
        by_method, _ = self._at(path)
        return any(route.is_generation for route in by_method.values())

    def is_guarded(self, path: str) -> bool:
        """True for paths that need a key once keys are configured, and for what is beside them."""
        return _first_segment(path) in self._guarded

    def _at(self, path: str) -> tuple[dict[str, Route], str]:
        """The routes of a path by their methods, and the rest of it; none if there is nothing."""
        found = self._at_exactly(path)
        return found if found[0] else self._at_exactly(VERSION_PREFIX + path)

    def _at_exactly(self, path: str) -> tuple[dict[str, Route], str]:
        by_method = self._exact.get(path)
        if by_method is not None:
            return by_method, ""
        prefix = next((prefix for prefix in self._open_ended if path.startswith(prefix)), None)
        return ({}, "") if prefix is None else (self._open_ended[prefix], path.removeprefix(prefix))


def _first_segment(path: str) -> str:
    return path.partition("/")[2].partition("/")[0]
