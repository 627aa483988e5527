"""An OpenAI-compatible server as its clients see it: where it is, what it serves, whether it is ready.

Knows the protocol, not what is asked of it. Retries nothing: a retry would hide what the server did. Source: the
OpenAI API reference (models); /tokenize as vLLM defines it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from relevo.core.errors import ModelNotFound, StartError, Unauthorized
from relevo.core.urls import normalise_url, with_plain_zone

READY_PATHS = ("/ready", "/health", "/v1/models")  # ours; llama.cpp and vLLM; anybody
PROBE_TIMEOUT_S = 30.0  # for the calls around the generation (models, tokenize, metrics); arbitrary


class Unreachable(StartError):
    """Nothing answers there."""


class OpenAIServer:
    """One server, as an async context manager. Connections are unlimited: how much is sent is for others to decide."""

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
        self.url = with_plain_zone(normalise_url(url))
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
        await self.session().close()

    async def pick_model(self, wanted: str | None) -> str:
        """The served model to ask for: `wanted` if it is served, the first one if None.

        Raises StartError (unreachable, not an OpenAI-compatible server), Unauthorized or ModelNotFound, each with one
        sentence for the person at the terminal.
        """
        status, body = await self.get_json("/v1/models")
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
            async with self.session().post(f"{self.url}/tokenize", json=body, timeout=timeout) as response:
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
            async with self.session().get(f"{self.url}/metrics", timeout=timeout) as response:
                if response.status != 200:
                    raise StartError(f"{self.url}/metrics answered HTTP {response.status}; it has no metrics to read")
                return await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def is_ready(self) -> bool:
        """Whether a request sent now would be served; False while no server listens.

        The first of READY_PATHS that the server has decides: servers that only know /v1/models answer it when ready.
        """
        try:
            for path in READY_PATHS:
                status, _ = await self.get_json(path)
                if status not in (404, 405):
                    return status == 200
        except StartError:
            return False
        return False

    async def owner(self) -> str:
        """`owned_by` of the first served model, which names the kind of server; empty if there is none."""
        _, body = await self.get_json("/v1/models")
        try:
            return str(body["data"][0]["owned_by"])
        except (KeyError, TypeError, IndexError):
            return ""

    async def get_json(self, path: str) -> tuple[int, Any]:
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self.session().get(self.url + path, timeout=timeout) as response:
                raw = await response.read()
                try:
                    return response.status, orjson.loads(raw)
                except orjson.JSONDecodeError:
                    return response.status, None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = str(error) or type(error).__name__
        return Unreachable(f"cannot reach {self.url}: {reason}; is the server running there?")

    def session(self) -> aiohttp.ClientSession:
        """The open session, for requests of other shapes."""
        assert self._session is not None, "use it as an async context manager"
        return self._session
