"""HTTP to one engine: a prompt that is streamed, one that is answered whole, aborts, and what it says of itself.

Its idle connections end before the engine closes them, and a connection that breaks before the first byte of an answer
is tried once more on a fresh one: nothing was told by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from relevo.client.http import CLIENT_ERRORS, CannotConnect, ConnectionBroken, HttpClient, Request
from relevo.client.sse import SSEParser
from relevo.engines.words import EngineAsk, EngineFacts, EngineFailed, EngineLoad, EngineProtocol, Piece

IDLE_S = 2.0  # less than any engine keeps a silent connection: uvicorn's 5 s is the shortest that is usual
ASK_S = 5.0  # for what an engine says of itself; arbitrary
ABORT_S = 2.0  # arbitrary


class EngineClient:
    """Open until `close`."""

    def __init__(self, url: str, protocol: EngineProtocol, api_key: str = "") -> None:
        self.url = url
        self.protocol = protocol
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._http = HttpClient(timeout_s=None, reuse_connections=True, idle_s=IDLE_S)
        self._is_open = False
        self.num_retries = 0  # of connections that broke before an answer began

    async def __aenter__(self) -> EngineClient:
        await self._http.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            self._is_open = False
            await self._http.__aexit__(None, None, None)

    async def answer(self, ask: EngineAsk, timeout_s: float) -> dict[str, Any]:
        """All at once. Raises EngineFailed, ConnectionError, TimeoutError."""
        status, body = await self._whole(
            "POST", self.protocol.generate_path, self._packed(ask, stream=False), timeout_s
        )
        if status != 200:
            raise self.protocol.failure(status, body)
        try:
            told = json.loads(body)
        except ValueError as error:
            raise EngineFailed("its answer is no JSON") from error
        if not isinstance(told, dict):
            raise EngineFailed("its answer is no JSON object")
        if "error" in told and "choices" not in told:
            raise self.protocol.failure(500, body)
        return told

    async def stream(self, ask: EngineAsk, silence_s: float) -> AsyncGenerator[Piece, None]:
        """Pieces as they come; an empty one when the engine has begun to answer. Ends after the last; raises
        EngineFailed, ConnectionError, TimeoutError. Leaving early closes the connection, at which engines give up."""
        body = self._packed(ask, stream=True)
        async with contextlib.AsyncExitStack() as stack:
            request = Request(
                method="POST", url=self.url + self.protocol.generate_path, headers=self._headers, body=body
            )
            try:
                response = await stack.enter_async_context(self._http.open(request, silence_s=silence_s))
            except ConnectionBroken as error:
                if isinstance(error, CannotConnect):
                    raise
                self.num_retries += 1
                response = await stack.enter_async_context(self._http.open(request, silence_s=silence_s))
            if response.status != 200:
                raise self.protocol.failure(response.status, await response.read())
            yield Piece()
            parser, num_tokens = SSEParser(), 0
            async for data in response.pieces():
                for event in parser.feed(data):
                    piece = self.protocol.piece(event.data, ask, num_tokens)
                    if piece is None:
                        return
                    num_tokens += len(piece.tokens)
                    yield piece
        raise EngineFailed("its stream ended before its end was said")

    async def abort(self, names: Sequence[str]) -> None:
        """As well as it goes: an engine that does not hear it hears the connection close."""
        for body in self.protocol.abort_bodies(names):
            with contextlib.suppress(*CLIENT_ERRORS):
                await self._whole("POST", self.protocol.abort_path, json.dumps(body).encode(), ABORT_S)

    async def facts(self) -> EngineFacts:
        """Raises NotFitting, EngineFailed, ConnectionError, TimeoutError."""
        paths = self.protocol.fact_paths
        answers = await asyncio.gather(*(self._whole("GET", path, b"", ASK_S) for path in paths))
        return self.protocol.facts(dict(zip(paths, answers, strict=True)))

    async def load(self) -> EngineLoad:
        status, body = await self._whole("GET", self.protocol.load_path, b"", ASK_S)
        if status != 200:
            raise self.protocol.failure(status, body)
        return self.protocol.load(body)

    async def is_healthy(self, timeout_s: float = ASK_S) -> bool:
        """Raises ConnectionError if it cannot even be asked, TimeoutError."""
        status, _ = await self._whole("GET", self.protocol.health_path, b"", timeout_s)
        return status == 200

    async def get_json(self, url: str) -> Any:
        """Of another server that belongs to it. Raises EngineFailed, ConnectionError, TimeoutError."""
        async with self._http.open(Request(method="GET", url=url, headers={}), timeout_s=ASK_S) as response:
            body = await response.read()
        try:
            return json.loads(body)
        except ValueError as error:
            raise EngineFailed(f"{url} answers with what is no JSON") from error

    def _packed(self, ask: EngineAsk, *, stream: bool) -> bytes:
        return json.dumps(self.protocol.body(ask, stream=stream), separators=(",", ":")).encode()

    async def _whole(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        request = Request(method=method, url=self.url + path, headers=self._headers, body=body)
        for is_last in (False, True):
            has_begun = False
            try:
                async with self._http.open(request, timeout_s=timeout_s) as response:
                    has_begun = True
                    return response.status, await response.read()
            except ConnectionBroken as error:
                if is_last or has_begun or isinstance(error, CannotConnect):
                    raise
                self.num_retries += 1
        raise AssertionError("the second try returns or raises")
