"""The clients of a soak: questions whose answers were noted while the server was quiet, requests that are left at
random moments, and nonsense. Knows the server by its HTTP interface; what its clients saw goes into a `SoakResult`."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from relevo.bench.soak.report import Asked, SoakResult
from relevo.client.http import ConnectionBroken
from relevo.client.server import OpenAIServer
from relevo.client.sse import SSEParser
from relevo.core.errors import StartError

REQUEST_TIMEOUT_S = 120.0
NONSENSE: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"n": 0},
    {"max_tokens": "many"},
    {"stop": 5},
    {"model": "unknown"},
    {"prompt": {}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    num_clients: int = 12
    num_questions: int = 24
    max_tokens: int = 48
    abort_fraction: float = 0.25
    nonsense_fraction: float = 0.05


@dataclass(slots=True)
class SoakTraffic:
    options: TrafficOptions
    client: OpenAIServer
    result: SoakResult
    rng: random.Random
    _questions: list[tuple[str, dict[str, Any], list[str]]] = field(default_factory=list)

    async def run(self, ends_at_s: float) -> None:
        """All clients, until then."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(self.options.num_clients):
                clients.create_task(self._client(ends_at_s))

    def _prompt(self) -> list[int]:
        return [self.rng.randrange(256) for _ in range(self.rng.randint(4, 400))]

    async def note_answers(self) -> None:
        """While nothing disturbs the server."""
        for number in range(self.options.num_questions):
            body: dict[str, Any] = {
                "max_tokens": self.rng.randint(1, self.options.max_tokens),
                "n": 2 if number % 6 == 5 else 1,
                "temperature": 0.8 if number % 3 == 2 else 0,
                "seed": number,
                "stream": number % 2 == 0,
            }
            path = "/v1/chat/completions" if number % 4 == 3 else "/v1/completions"
            if "chat" in path:
                body["messages"] = [{"role": "user", "content": f"Tell me about the number {number}. " * (1 + number)}]
            else:
                body |= {"prompt": self._prompt(), "ignore_eos": True}
            if body["stream"]:
                body["stream_options"] = {"include_usage": True}
            asked, texts = await self._ask("question", path, body, None)
            if not asked.is_complete:
                raise StartError(f"the server did not answer a question while nothing disturbed it: {asked.wrong}")
            self._questions.append((path, body, texts))

    async def _client(self, ends_at_s: float) -> None:
        while time.monotonic() < ends_at_s:
            draw = self.rng.random()
            if draw < self.options.nonsense_fraction:
                body = {"prompt": [1, 2], "max_tokens": 2} | self.rng.choice(NONSENSE)
                asked, _ = await self._ask("nonsense", "/v1/completions", body, None)
                if not 400 <= asked.status < 500:
                    asked.wrong = f"nonsense was answered {asked.status}"
            elif draw < self.options.nonsense_fraction + self.options.abort_fraction:
                body = {"prompt": self._prompt(), "max_tokens": 400, "ignore_eos": True, "stream": True}
                await self._ask("leaver", "/v1/completions", body, self.rng.uniform(0.0, 1.5))
            else:
                path, body, expected = self.rng.choice(self._questions)
                asked, texts = await self._ask("question", path, body, None)
                if asked.is_complete and texts != expected:
                    asked.wrong = f"{texts} instead of {expected}"
            await asyncio.sleep(self.rng.expovariate(20.0))

    async def _ask(
        self, kind: str, path: str, body: dict[str, Any], leave_after_s: float | None
    ) -> tuple[Asked, list[str]]:
        """Errors are noted, never raised."""
        asked = Asked(f"soak{len(self.result.asked) + 1}", kind, path)
        self.result.asked.append(asked)
        texts = [""] * int(body["n"] if isinstance(body.get("n"), int) else 1)
        try:
            async with asyncio.timeout(leave_after_s):
                await self._exchange(asked, body, texts)
        except TimeoutError:
            if leave_after_s is None:
                asked.wrong = f"no answer within {REQUEST_TIMEOUT_S:.0f} s"
        except ConnectionBroken as error:
            asked.wrong = str(error)
        return asked, texts

    async def _exchange(self, asked: Asked, body: dict[str, Any], texts: list[str]) -> None:
        request = self.client.request("POST", asked.path, orjson.dumps(body), {"x-request-id": asked.request_id})
        parser = SSEParser()
        async with self.client.open(request) as answer:
            asked.status, asked.has_begun = answer.status, True
            if answer.status != 200:
                told = (await answer.read())[:200].decode(errors="replace")
                if asked.kind != "nonsense":
                    asked.wrong = f"HTTP {answer.status} {told}"
                return
            if not body.get("stream"):
                self._take(asked, orjson.loads(await answer.read()), texts)
                asked.is_complete = True
                return
            async for piece in answer.pieces():
                for event in parser.feed(piece):
                    if event.data == b"[DONE]":
                        asked.is_complete = True
                    else:
                        self._take(asked, orjson.loads(event.data), texts)

    def _take(self, asked: Asked, part: dict[str, Any], texts: list[str]) -> None:
        if "error" in part:
            asked.wrong = f"error event: {part['error']}"
        for choice in part.get("choices", ()):
            words = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            texts[choice["index"]] += words
        if part.get("usage"):
            asked.num_completion_tokens = int(part["usage"]["completion_tokens"])
