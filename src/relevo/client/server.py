"""An OpenAI-compatible server as its clients see it: where it is, what it serves, whether it is ready.

Knows the protocol, not what is asked of it. Source: the OpenAI API reference (models); /tokenize as vLLM defines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from relevo.client.http import CLIENT_ERRORS, HttpClient, Request
from relevo.core.errors import ModelNotFound, StartError, Unauthorized
from relevo.core.urls import normalise_url, with_plain_zone

READY_PATHS = ("/ready", "/health", "/v1/models")  # ours; llama.cpp and vLLM; any server
PROBE_TIMEOUT_S = 30.0  # for the calls around the generation (models, tokenize, metrics); arbitrary


class Unreachable(StartError):
    """Nothing answers there."""


class OpenAIServer(HttpClient):
    """One server."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        request_timeout_s: float | None = None,
        reuse_connections: bool = True,
    ) -> None:
        """Without `reuse_connections` every request connects anew: some servers close a connection that looks open."""
        super().__init__(timeout_s=request_timeout_s, reuse_connections=reuse_connections)
        self.url = with_plain_zone(normalise_url(url))
        self.api_key = api_key

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Request:
        """A body is JSON unless `headers` say otherwise, and the key goes with it if there is one. A header that is
        given empty is not sent, not even by default."""
        chosen = {"Content-Type": "application/json"} if body else {}
        if self.api_key is not None:
            chosen["Authorization"] = f"Bearer {self.api_key}"
        chosen |= headers or {}
        sent = {name: value for name, value in chosen.items() if value}
        return Request(method=method, url=self.url + path, headers=sent, body=body)

    async def models(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """The status of /v1/models, and the served models' cards by name."""
        status, body = await self.get_json("/v1/models")
        try:
            return status, {str(card["id"]): card for card in body["data"]}
        except (KeyError, TypeError):
            return status, {}

    async def pick_model(self, wanted: str | None) -> str:
        return (await self.pick_card(wanted))[0]

    async def pick_card(self, wanted: str | None) -> tuple[str, dict[str, Any]]:
        """The model to ask for and its card, which may be empty: `wanted` unless only others are served, the first
        one if None.

        Raises StartError (unreachable, no OpenAI-compatible server), Unauthorized or ModelNotFound, each with one
        sentence for the person at the terminal.
        """
        status, cards = await self.models()
        if status in (401, 403):
            raise Unauthorized(f"{self.url} refused the API key (HTTP {status}); pass the right one with --api-key")
        if wanted is not None and cards and wanted not in cards:
            raise ModelNotFound(f"{self.url} does not serve {wanted!r}; it serves {', '.join(cards)}")
        if wanted is None and not cards:
            raise StartError(
                f"{self.url}/v1/models answered HTTP {status} and names no model; is it an OpenAI server? "
                "If so, name one with --model"
            )
        name = wanted or next(iter(cards))
        return name, cards.get(name, {})

    async def tokenize(self, body: Mapping[str, Any]) -> list[int] | None:
        """Token ids of `{"model", "prompt"}` or `{"model", "messages"}`; None if the server has no /tokenize."""
        status, told = await self.answer(self.request("POST", "/tokenize", orjson.dumps(body)))
        tokens = told.get("tokens") if status == 200 and isinstance(told, dict) else None
        is_list = isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)
        return tokens if is_list else None

    async def metrics_text(self) -> str:
        """The body of /metrics. Raises StartError if there is none."""
        status, raw = await self._get("/metrics")
        if status != 200:
            raise StartError(f"{self.url}/metrics answered HTTP {status}; it has no metrics to read")
        return raw.decode(errors="replace")

    async def is_ready(self) -> bool:
        """Whether a request sent now would be served; False while no server listens.

        The first of READY_PATHS that the server has decides: servers that only know /v1/models answer it when ready.
        """
        try:
            for path in READY_PATHS:
                status, _ = await self._get(path)
                if status not in (404, 405):
                    return status == 200
        except StartError:
            return False
        return False

    async def owner(self) -> str:
        """`owned_by` of the first served model, which names the kind of server; empty if there is none."""
        _, cards = await self.models()
        return str(next(iter(cards.values()), {}).get("owned_by", ""))

    async def get_json(self, path: str) -> tuple[int, Any]:
        """Status and body, None if that is not JSON. Raises Unreachable."""
        return await self.answer(self.request("GET", path))

    async def answer(self, request: Request) -> tuple[int, Any]:
        """Status and body, None if that is not JSON. Raises Unreachable."""
        status, raw = await self._whole(request)
        try:
            return status, orjson.loads(raw)
        except orjson.JSONDecodeError:
            return status, None

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self._whole(self.request("GET", path))

    async def _whole(self, request: Request) -> tuple[int, bytes]:
        try:
            async with self.open(request, timeout_s=PROBE_TIMEOUT_S) as response:
                return response.status, await response.read()
        except (*CLIENT_ERRORS, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"cannot reach {self.url}: {reason}; is the server running there?") from error
