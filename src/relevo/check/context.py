"""What one check is given: requests in short form, the facts, seeded randomness, and the closing probe.

Owns the defaults of requests: greedy and short, so that answers can be compared and a run takes minutes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from relevo.check.disturber import Disturber
from relevo.check.equality import difference, is_near_tie
from relevo.check.exchange import Answer, Exchange, StreamAnswer
from relevo.check.facts import Facts, tokenize
from relevo.check.gauges import KV_USAGE, RUNNING, reading
from relevo.check.server import Server
from relevo.check.texts import OPENING, QUESTION
from relevo.check.words import Mismatch, Need, Skip

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NUM_TOKENS = 20  # of an ordinary answer; arbitrary
POLL_S = 0.05
KV_TOLERANCE = 0.001  # of the whole cache; gauges are rounded


@dataclass(slots=True)
class CheckContext:
    server: Server
    facts: Facts
    rng: Random
    settle_s: float  # how long what was abandoned may stay
    oracle: Server | None = None
    oracle_model: str = ""
    disturber: Disturber | None = None
    other: Server | None = None  # the same server, asked with the key of another tenant
    pause_s: float = 12.0  # how long a process is stopped by the check of long pauses
    notes: list[str] = field(default_factory=list)
    last: Exchange | None = None  # what was sent last; shown when nothing came back

    # ---- bodies: a field set to ... is left out ----------------------------------------------------------------------

    def chat_body(self, content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
        body = {
            "model": self.facts.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
        }
        return {name: value for name, value in (body | fields).items() if value is not ...}

    def completion_body(self, prompt: Any = OPENING, **fields: Any) -> dict[str, Any]:
        body = {"model": self.facts.model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
        return {name: value for name, value in (body | fields).items() if value is not ...}

    def prompt_body(self, text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of `text` as a completion if there is that endpoint, else as a chat."""
        if self.facts.has(Need.COMPLETIONS):
            return COMPLETIONS, self.completion_body(text, **fields)
        return CHAT, self.chat_body(text, **fields)

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def chat(self, content: Any = QUESTION, **fields: Any) -> Answer:
        return await self.post(CHAT, self.chat_body(content, **fields))

    async def complete(self, prompt: Any = OPENING, **fields: Any) -> Answer:
        return await self.post(COMPLETIONS, self.completion_body(prompt, **fields))

    async def ask(self, text: str, **fields: Any) -> Answer:
        """`text` as in `prompt_body`."""
        return await self.post(*self.prompt_body(text, **fields))

    async def stream_chat(self, content: Any = QUESTION, **fields: Any) -> StreamAnswer:
        return await self.stream(CHAT, self.chat_body(content, **fields))

    async def stream_complete(self, prompt: Any = OPENING, **fields: Any) -> StreamAnswer:
        return await self.stream(COMPLETIONS, self.completion_body(prompt, **fields))

    async def post(self, path: str, body: Any) -> Answer:
        """`body` is sent as it is if it is bytes, else as JSON."""
        return await self.send("POST", path, body if isinstance(body, bytes) else orjson.dumps(body))

    async def stream(self, path: str, body: dict[str, Any], heard: asyncio.Event | None = None) -> StreamAnswer:
        self.last = exchange = self.stream_exchange(path, body)
        answer = await self.server.stream(exchange, heard)
        assert answer is not None, "a stream without a limit is read to its end"
        return answer

    async def stream_at_most(self, path: str, body: dict[str, Any], num_events: int) -> StreamAnswer | None:
        """None if there were that many events: the connection was closed then."""
        self.last = exchange = self.stream_exchange(path, body)
        return await self.server.stream(exchange, max_events=num_events)

    def exchange(self, path: str, body: dict[str, Any], server: Server | None = None) -> Exchange:
        return (server or self.server).exchange("POST", path, orjson.dumps(body))

    def stream_exchange(self, path: str, body: dict[str, Any], server: Server | None = None) -> Exchange:
        return self.exchange(path, body | {"stream": True}, server)

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.last = exchange = self.server.exchange(method, path, body, named)
        return await self.server.send(exchange)

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        tokens = await tokenize(self.server, self.facts.model, text, special=special)
        if tokens is None:
            raise Skip("/tokenize stopped answering with token ids")
        return tokens

    @property
    def endless(self) -> dict[str, Any]:
        """Fields for an answer that goes on to max_tokens, where the server knows them."""
        return {"ignore_eos": True} if self.facts.has(Need.IGNORE_EOS) else {}

    # ---- judging -----------------------------------------------------------------------------------------------------

    def logprob_fields(self, path: str) -> dict[str, Any]:
        """Fields that let a near tie be recognised, where the server has them."""
        if path == CHAT:
            return {"logprobs": True, "top_logprobs": 5} if self.facts.has(Need.CHAT_LOGPROBS) else {}
        return {"logprobs": 5} if self.facts.has(Need.COMPLETION_LOGPROBS) else {}

    def same_text(
        self, answer: Answer, reference: Answer, what: str, index: int = 0, reference_index: int | None = None
    ) -> None:
        """Raises Mismatch unless the texts are equal or part at a near tie, which is noted."""
        told = difference(answer, reference, index, reference_index)
        if told is None:
            return
        if is_near_tie(answer, reference, index, reference_index):
            self.notes.append(f"{what}: equal up to a near tie")
            return
        raise answer.fail(f"{what}: {told}", "equal texts")

    # ---- nothing may stay behind -------------------------------------------------------------------------------------

    async def running(self) -> float | None:
        return await self._gauge(RUNNING)

    async def kv_usage(self) -> float | None:
        return await self._gauge(KV_USAGE)

    async def _gauge(self, names: tuple[tuple[str, ...], ...]) -> float | None:
        answer = await self.server.send(self.server.exchange("GET", "/metrics"))
        return reading(answer.raw.decode(errors="replace"), names) if answer.status == 200 else None

    async def settled_at(self, gauge_is_running: bool, limit: float) -> float | None:
        """Waits up to `settle_s` for the gauge to fall to `limit`; its last value if it does not, else None.

        Raises Mismatch if the gauge, which was there before the checks, is gone by then.
        """
        deadline_s = time.monotonic() + self.settle_s
        while True:
            value = await (self.running() if gauge_is_running else self.kv_usage())
            if value is not None and value <= limit:
                return None
            if time.monotonic() > deadline_s:
                if value is None:
                    need = Need.RUNNING_METRIC if gauge_is_running else Need.KV_METRIC
                    raise Mismatch(f"/metrics no longer has {need}", expected="the gauge it had before")
                return value
            await asyncio.sleep(POLL_S)

    async def closing_probe(self, kv_before: float | None, reference: Answer | None = None) -> None:
        """Nothing in flight, KV back at its baseline, and an answer as before."""
        if self.facts.has(Need.RUNNING_METRIC):
            left = await self.settled_at(True, 0.0)
            if left is not None:
                raise Mismatch(f"{left:g} requests are still running after {self.settle_s:g} s", expected="none")
        if kv_before is not None:
            used = await self.settled_at(False, kv_before + KV_TOLERANCE)
            if used is not None:
                raise Mismatch(
                    f"KV cache usage is {used:.4f} after {self.settle_s:g} s", expected=f"{kv_before:.4f}, as before"
                )
        if reference is not None:
            again = await self.ask_again(reference)
            self.same_text(again.ok(), reference, "the probe before and after")

    async def ask_again(self, reference: Answer) -> Answer:
        self.last = reference.exchange
        return await self.server.send(reference.exchange)

    async def quiet_baseline(self) -> tuple[float | None, Answer]:
        """KV usage of the idle server after one probe, and the probe's answer."""
        path, body = self.prompt_body(OPENING)
        reference = (await self.post(path, body | self.logprob_fields(path))).ok()
        if self.facts.has(Need.RUNNING_METRIC) and await self.settled_at(True, 0.0) is not None:
            raise Skip("other requests are running on the server")
        return (await self.kv_usage() if self.facts.has(Need.KV_METRIC) else None), reference
