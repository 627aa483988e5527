"""An OpenAI-compatible HTTP client that stamps every chunk of a stream with the monotonic clock.

Knows the protocol, not the load: when requests are sent is decided by `bench.load`. Retries nothing, because a retry
would hide what the server did. Source: the OpenAI API reference (chat completions, completions, models); /tokenize as
vLLM defines it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.bench.sse import SSEParser
from relevo.core.errors import ModelNotFound, StartError, Unauthorized

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}
READY_PATHS = ("/ready", "/health", "/v1/models")  # ours; llama.cpp and vLLM; anybody
MAX_ERROR_DETAIL = 300  # characters kept of an error body; arbitrary
PROBE_TIMEOUT_S = 30.0  # for the calls around the load (models, tokenize, metrics); arbitrary


def normalise_url(url: str) -> str:
    """`host:port`, `http://host:port/` and `http://host:port/v1` all name the same server."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/").removesuffix("/v1").rstrip("/")


class OpenAIClient:
    """One server, as an async context manager. Connections are unlimited, so that the load is not throttled here."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        request_timeout_s: float | None = None,
        reuse_connections: bool = True,
    ) -> None:
        """Without `reuse_connections` every request connects anew: some servers close a connection that looks open."""
        self._reuse_connections = reuse_connections
        self.url = normalise_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s, sock_connect=10.0)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=not self._reuse_connections)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open_session().close()

    async def pick_model(self, wanted: str | None) -> str:
        """The served model to ask for: `wanted` if it is served, the first one if None.

        Raises StartError (unreachable, not an OpenAI-compatible server), Unauthorized or ModelNotFound, each with one
        sentence for the person at the terminal.
        """
        status, body = await self._get_json("/v1/models")
        if status in (401, 403):
            raise Unauthorized(f"{self.url} refused the API key (HTTP {status}); pass the right one with --api-key")
        try:
            served = [str(entry["id"]) for entry in body["data"]]
        except (KeyError, TypeError):
            served = []
        if status != 200 or not served:
            raise StartError(f"{self.url}/v1/models answered HTTP {status} and names no model; is it an OpenAI server?")
        if wanted is not None and wanted not in served:
            raise ModelNotFound(f"{self.url} does not serve {wanted!r}; it serves {', '.join(served)}")
        return wanted or served[0]

    async def tokenize(self, body: dict[str, Any]) -> list[int] | None:
        """Token ids of `{"model", "prompt"}` or `{"model", "messages"}`; None if the server has no /tokenize."""
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self._open_session().post(f"{self.url}/tokenize", json=body, timeout=timeout) as response:
                if response.status != 200:
                    return None
                return [int(token) for token in orjson.loads(await response.read())["tokens"]]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error
        except (KeyError, TypeError, ValueError):
            return None

    async def metrics_text(self) -> str:
        """The body of /metrics. Raises StartError if there is none."""
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self._open_session().get(f"{self.url}/metrics", timeout=timeout) as response:
                if response.status != 200:
                    raise StartError(f"{self.url}/metrics answered HTTP {response.status}; it has no metrics to read")
                return await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def is_ready(self) -> bool:
        """Whether a request sent now would be served; False while nobody listens.

        The first of READY_PATHS that the server has decides: servers that only know /v1/models answer it when ready.
        """
        try:
            for path in READY_PATHS:
                status, _ = await self._get_json(path)
                if status not in (404, 405):
                    return status == 200
        except StartError:
            return False
        return False

    async def owner(self) -> str:
        """`owned_by` of the first served model, which names the kind of server; empty if there is none."""
        _, body = await self._get_json("/v1/models")
        try:
            return str(body["data"][0]["owned_by"])
        except (KeyError, TypeError, IndexError):
            return ""

    async def stream(
        self,
        planned: PlannedRequest,
        record: ClientRecord,
        *,
        model: str,
        endpoint: Endpoint,
        extra: dict[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one streaming request and fill `record`; errors are recorded, never raised (cancellation passes)."""
        payload = orjson.dumps(request_body(planned, model, endpoint, extra))
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        record.sent_at_ns = time.monotonic_ns()
        try:
            url = self.url + PATHS[endpoint]
            async with self._open_session().post(url, data=payload, headers=all_headers) as response:
                if response.status != 200:
                    detail = (await response.text())[:MAX_ERROR_DETAIL]
                    _fail(record, f"http_{response.status}", detail)
                    return
                await _read_stream(response, record)
        except TimeoutError as error:
            _fail(record, "timeout", str(error))
        except aiohttp.ClientConnectorError as error:
            _fail(record, "connect", str(error))
        except (aiohttp.ClientError, ConnectionError) as error:
            _fail(record, "disconnected", f"{type(error).__name__}: {error}")

    async def _get_json(self, path: str) -> tuple[int, Any]:
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self._open_session().get(self.url + path, timeout=timeout) as response:
                raw = await response.read()
                try:
                    return response.status, orjson.loads(raw)
                except orjson.JSONDecodeError:
                    return response.status, None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> StartError:
        reason = str(error) or type(error).__name__
        return StartError(f"cannot reach {self.url}: {reason}; is the server running there?")

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use OpenAIClient as an async context manager"
        return self._session


def request_body(planned: PlannedRequest, model: str, endpoint: Endpoint, extra: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a streaming request. `extra` fields go in last and win."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if endpoint is Endpoint.CHAT:
        body |= {"messages": [{"role": "user", "content": planned.prompt}], "max_completion_tokens": planned.max_tokens}
    else:
        body |= {"prompt": planned.prompt, "max_tokens": planned.max_tokens}
    return body | extra


async def _read_stream(response: aiohttp.ClientResponse, record: ClientRecord) -> None:
    parser = SSEParser()
    done = False
    async for piece in response.content.iter_any():
        now_ns = time.monotonic_ns()
        for event in parser.feed(piece):
            if event == b"[DONE]":
                done = True
            else:
                _take_event(event, record, now_ns)
    if record.error is not None:
        return
    if not done and record.finish_reason is None:
        _fail(record, "truncated", "the stream ended without a finish_reason")
        return
    record.finished_at_ns = record.chunk_at_ns[-1] if record.chunk_at_ns else time.monotonic_ns()
    record.num_output_tokens = record.num_output_tokens or len(record.chunk_at_ns)


def _take_event(event: bytes, record: ClientRecord, now_ns: int) -> None:
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError:
        _fail(record, "stream_error", f"not JSON: {event[:MAX_ERROR_DETAIL]!r}")
        return
    if not isinstance(chunk, dict) or "error" in chunk:
        _fail(record, "stream_error", event[:MAX_ERROR_DETAIL].decode(errors="replace"))
        return
    for choice in chunk.get("choices") or ():
        if _has_output(choice):
            record.chunk_at_ns.append(now_ns)
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    usage = chunk.get("usage")
    if usage:
        record.num_prompt_tokens = usage.get("prompt_tokens")
        record.num_output_tokens = usage.get("completion_tokens") or 0
        record.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _has_output(choice: dict[str, Any]) -> bool:
    """Whether a chunk brings output; the chunk that only names the role does not."""
    delta = choice.get("delta") or choice
    fields = ("content", "text", "reasoning_content", "reasoning", "tool_calls", "token_ids")
    return any(delta.get(name) for name in fields) or bool(choice.get("token_ids"))


def _fail(record: ClientRecord, kind: str, detail: str) -> None:
    record.error, record.error_detail, record.failed_at_ns = kind, detail, time.monotonic_ns()
