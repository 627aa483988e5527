"""The edge's ASGI application: every request goes to one region, and comes back as the region said it.

Owns forwarding. Until the first byte of an answer's body nothing has reached the client, so a region that fails before
is replaced by the next one; afterwards the client sees what happened. Who is next, and which answer is good enough, is
`policy.routing.region_choice`'s; when all regions are busy the client gets the last one's own words. Does not parse
answers; of a request it reads only what names its session.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

from relevo.core.errors import NoWorker, RelevoError, RequestError, WorkerLost
from relevo.core.ids import RequestId
from relevo.gateway.edge.metrics import EdgeMetrics
from relevo.gateway.edge.passing_on import to_client, to_region
from relevo.gateway.edge.regions import Regions
from relevo.gateway.http.auth import presented_key
from relevo.gateway.http.body import check_num_items, json_text, read_body
from relevo.gateway.http.byte_account import ByteAccount
from relevo.gateway.http.errors import UnknownPath, error_response
from relevo.gateway.http.route import RouteTable
from relevo.gateway.http.site import Site
from relevo.gateway.http.sse import ClientGone, run_while_connected
from relevo.gateway.text.text_work import INLINE_BYTES
from relevo.gateway.tracing.open_traces import OpenTraces
from relevo.policy.routing.affinity import affinity_of
from relevo.policy.routing.region_choice import BYTES_PER_TOKEN, RegionAttempts, RegionChoice
from relevo.policy.tracing.trace_context import response_headers
from relevo.policy.tracing.words import AttemptTrace, CallTrace
from relevo.telemetry.text_format import format_for

log = logging.getLogger("relevo.edge")

REGION_HEADER = "x-relevo-region"  # of every forwarded answer
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host".split()
)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """One request as every region gets it."""

    request_id: RequestId
    method: str
    path_and_query: str
    headers: list[tuple[str, str]]
    body: bytes
    session: bytes
    num_tokens: int  # estimated
    trace: CallTrace | None = None  # None: none is made of it


BODY_MEMORY_BYTES = 256 * 2**20  # arbitrary; of all requests that are being forwarded


@dataclass(slots=True)
class Attempt:
    """An answer whose first byte is here, or that has no body."""

    region: str
    path: str
    answer: aiohttp.ClientResponse
    first_chunk: bytes
    trace: AttemptTrace | None = None


class RegionFailed(Exception):
    """Before the first byte: another region may be asked."""


@dataclass(slots=True)
class Edge:
    regions: Regions
    choice: RegionChoice
    metrics: EdgeMetrics
    client: aiohttp.ClientSession
    max_body_bytes: int
    routes: RouteTable  # of the regions
    site: Site = field(default_factory=Site)
    rng: random.Random = field(default_factory=random.Random)
    body_memory: ByteAccount = field(default_factory=lambda: ByteAccount(BODY_MEMORY_BYTES))
    traces: OpenTraces | None = None  # None: none are made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = self._own(request)
        if response is not None:
            await response(scope, receive, send)
            return
        trace = self._begun(request)
        try:
            if presented_key(request.headers) is None:
                self.site.check(request.method, request.headers)
            await self._forward(request, receive, send, trace)
        except ClientGone:
            self._ended(trace, 499, "client_gone")
        except RelevoError as error:
            response = error_response(self.routes.error_format(scope["path"]), error)
            if trace is not None:
                response.headers.update(response_headers(trace.own))
            self._ended(trace, response.status_code, error.code)
            await response(scope, receive, send)
        finally:
            if trace is not None and self.traces is not None:
                trace.ends_ns = trace.ends_ns or time.monotonic_ns()
                self.traces.end(trace)

    def _begun(self, request: Request) -> CallTrace | None:
        """Of paths that a region answers, and that are no probes."""
        if self.traces is None:
            return None
        try:
            route, _ = self.routes.find(request.method, request.scope["path"], request.headers)
        except RelevoError:
            return None
        if route.is_open:
            return None
        return self.traces.begin(request.headers.raw, request.method, route.path, time.monotonic_ns())

    def _ended(self, trace: CallTrace | None, status: int, reason: str) -> None:
        """Without a whole answer."""
        self.metrics.ended(reason)
        if trace is not None:
            trace.status, trace.error, trace.has_failed = trace.status or status, reason, status >= 500

    # ---- what the edge says itself -----------------------------------------------------------------------------------

    def _own(self, request: Request) -> Response | None:
        match request.scope["path"]:
            case "/health" | "/ready":
                regions = [{"region": r.name, "ready": r.is_up, "reason": r.why_down} for r in self.regions.all]
                is_ready = bool(self.regions.up())
                body = {"ready": is_ready, "regions": regions}
                return Response(orjson.dumps(body), 200 if is_ready else 503, media_type="application/json")
            case "/metrics":
                if self.traces is not None:
                    self.metrics.traces_dropped(self.traces.num_dropped())
                body_bytes, content_type = self.metrics.render(
                    {r.name: (r.is_up, self.choice.num_open(r.name)) for r in self.regions.all},
                    format_for(request.headers.get("accept", "")),
                )
                return Response(body_bytes, headers={"content-type": content_type})
        if request.scope["path"].startswith("/admin/"):  # a region's operator knows its address
            error = UnknownPath("An edge does not administrate regions; ask the region itself.")
            return error_response(self.routes.error_format(request.scope["path"]), error)
        return None

    # ---- forwarding --------------------------------------------------------------------------------------------------

    async def _forward(self, request: Request, receive: Receive, send: Send, trace: CallTrace | None) -> None:
        body = await read_body(request, self.max_body_bytes, self.body_memory)
        try:
            forwarded = await self._forwarded(request, body, trace)
            try:
                await run_while_connected(receive, self._serve(forwarded, send))
            finally:
                self.choice.end(forwarded.request_id)
        finally:
            self.body_memory.give_back(len(body))

    async def _forwarded(self, request: Request, body: bytes, trace: CallTrace | None) -> Forwarded:
        raw_path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("latin-1")
        has_session = self.routes.is_generation(request.scope["path"])
        session = await _session_off_loop(request.headers, body) if has_session else b""
        return Forwarded(
            request_id=RequestId(uuid.uuid4().hex),
            method=request.method,
            path_and_query=raw_path + (f"?{query}" if query else ""),
            headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in request.headers.raw
                if name.lower() not in _HOP_BY_HOP and name.lower() != b"content-length"
            ],
            body=body,
            session=session,
            num_tokens=max(1, len(body) // BYTES_PER_TOKEN),
            trace=trace,
        )

    async def _serve(self, forwarded: Forwarded, send: Send) -> None:
        attempt = await self._first_answer(forwarded)
        try:
            await self._pass_on(attempt, forwarded.trace, send)
        finally:
            attempt.answer.close()

    async def _first_answer(self, forwarded: Forwarded) -> Attempt:
        """From the best region that answers; raises NoWorker when none does."""
        attempts = RegionAttempts(self.choice, forwarded.request_id, forwarded.session, forwarded.num_tokens)
        busy: Attempt | None = None
        while (pick := attempts.next_region(self.regions.up(), self.rng)) is not None:
            name = pick.candidate.key
            log.debug("%s to %s: %s", forwarded.request_id, name, pick.reason)
            started_s = time.monotonic()
            try:
                attempt = await self._ask(name, forwarded)
            except RegionFailed as failure:
                self.metrics.retried("failed")
                log.warning("region %s failed before its first byte: %s", name, failure)
                continue
            if busy is not None:
                busy.answer.close()
            if attempts.accepts(attempt.answer.status, time.monotonic() - started_s):
                return attempt
            _left(attempt.trace, f"busy: {attempt.answer.status}")
            busy = attempt
            self.metrics.retried("busy")
        if busy is not None:
            return busy
        reasons = "; ".join(f"{region.name}: {region.why_down or 'failed'}" for region in self.regions.all)
        raise NoWorker(f"No region can take the request now ({reasons}).", retry_after_s=1.0)

    async def _ask(self, name: str, forwarded: Forwarded) -> Attempt:
        """Until the first byte of the body. Raises RegionFailed."""
        region = self.regions[name]
        trace, headers = None, forwarded.headers
        if forwarded.trace is not None and self.traces is not None:
            trace = self.traces.attempt(forwarded.trace, name, time.monotonic_ns())
            headers = to_region(headers, trace.context)
        asking = asyncio.create_task(self._open(region.url, forwarded, headers))
        down = asyncio.create_task(region.went_down.wait())
        try:
            await asyncio.wait((asking, down), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                _left(trace, region.why_down)
                raise RegionFailed(region.why_down)
            answer, first_chunk = await asking
        except asyncio.CancelledError:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                asking.result()[0].close()  # so that the region hears that its answer is not wanted
            raise
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                self.regions.lost(name, f"{type(error).__name__}: {error}")
            _left(trace, f"{type(error).__name__}: {error}")
            raise RegionFailed(f"{type(error).__name__}: {error}") from error
        finally:
            for task in (asking, down):
                task.cancel()
            await asyncio.gather(asking, down, return_exceptions=True)
        if trace is not None:
            trace.status = answer.status
        return Attempt(name, forwarded.path_and_query.partition("?")[0], answer, first_chunk, trace)

    async def _open(
        self, url: str, forwarded: Forwarded, headers: list[tuple[str, str]]
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        answer = await self.client.request(
            forwarded.method,
            URL(url + forwarded.path_and_query, encoded=True),  # as it came: a path is not mended on the way
            data=forwarded.body if forwarded.body or forwarded.method == "POST" else None,
            headers=headers,
            allow_redirects=False,
        )
        try:
            return answer, await answer.content.readany()
        except BaseException:  # cancelled, too: the region hears of it by the end of its connection
            answer.close()
            raise

    async def _pass_on(self, attempt: Attempt, trace: CallTrace | None, send: Send) -> None:
        answer = attempt.answer
        headers = [(name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _HOP_BY_HOP]
        headers.append((REGION_HEADER.encode(), attempt.region.encode()))
        if trace is not None:
            trace.status, trace.has_failed = answer.status, answer.status >= 500
            headers = to_client(headers, trace.own)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        try:
            if attempt.first_chunk:
                await send(_chunk(attempt.first_chunk))
                async for chunk in answer.content.iter_any():
                    await send(_chunk(chunk))
        except (aiohttp.ClientError, OSError) as error:
            if trace is not None:
                trace.error, trace.has_failed = "region_lost", True
            _left(attempt.trace, f"died within its answer: {type(error).__name__}")
            await self._break_off(attempt, error, send)
            return
        if trace is not None:
            trace.ends_ns = time.monotonic_ns()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.metrics.answered(attempt.region, answer.status)

    async def _break_off(self, attempt: Attempt, error: Exception, send: Send) -> None:
        """A region died within an answer: a stream ends with one error event, anything else is cut."""
        self.metrics.ended("region_lost")
        log.warning("region %s died within an answer: %s", attempt.region, error)
        if attempt.answer.content_type != "text/event-stream":
            raise ConnectionError("the region died within its answer") from error
        lost = WorkerLost(f"Region {attempt.region} was lost within the answer; send the request again.")
        event = self.routes.error_format(attempt.path).stream_event(lost, "")
        await send(_chunk(b"\n\n" + event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _left(attempt: AttemptTrace | None, why: str) -> None:
    if attempt is not None:
        attempt.ends_ns, attempt.failure = time.monotonic_ns(), why


def _chunk(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _session_off_loop(headers: Mapping[str, str], body: bytes) -> bytes:
    if len(body) <= INLINE_BYTES:
        return _session(headers, body)
    return await asyncio.to_thread(_session, headers, body)


def _session(headers: Mapping[str, str], body: bytes) -> bytes:
    """Scoped by the caller's key, which only regions can check."""
    try:
        check_num_items(body)
        parsed: Any = orjson.loads(json_text(body))
    except (orjson.JSONDecodeError, RequestError):
        return b""  # the region will say what is wrong with it
    if not isinstance(parsed, dict):
        return b""
    tenant = presented_key(headers) or ""
    return affinity_of(headers, parsed, tenant=tenant, model=str(parsed.get("model", ""))).key


@asynccontextmanager
async def edge_app(
    regions: Regions,
    choice: RegionChoice,
    metrics: EdgeMetrics,
    max_body_bytes: int,
    routes: RouteTable,
    site: Site,
    traces: OpenTraces | None = None,
) -> AsyncIterator[Edge]:
    """The application, with probes running and connections open."""
    timeout = aiohttp.ClientTimeout(total=None, connect=2.0, sock_connect=2.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as client:
        probing = asyncio.create_task(regions.probe(client))
        try:
            yield Edge(regions, choice, metrics, client, max_body_bytes, routes, site, traces=traces)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
