"""The loop that steps the engine, and what each step brings to the requests under way.

Everything runs in the event loop's thread: the library holds the interpreter for the whole of a step, so that a thread
of its own would only delay what the step before has brought. Between two steps the event loop gets its turns: it
sends what came, and takes new requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from relevo.bench.openvino.engine import Generation, OpenVinoEngine, Sampling, last_line
from relevo.core.ids import TokenId

LOOP_TURNS = 6  # between two steps: accept, read, parse, add, wake a stream, write
WINDOW_TOKENS, KEPT_TOKENS = 64, 8  # arbitrary: of an answer's end that is spelled anew with every token
_UNFINISHED = "\ufffd"  # what half a character is spelled as


@dataclass(frozen=True, slots=True)
class Piece:
    """Of an answer. The last one has a `finish_reason`, or `fault`: the sentence that says why there is no more."""

    text: str = ""
    token_ids: Sequence[TokenId] = ()
    finish_reason: str | None = None
    fault: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.fault is not None


@dataclass(slots=True, eq=False)
class _Answer:
    generation: Generation
    pieces: asyncio.Queue[Piece] = field(default_factory=asyncio.Queue)  # as many as its max_tokens at most
    window: list[TokenId] = field(default_factory=list)  # the last tokens
    num_sent: int = 0  # characters of the window's text


class StepLoop:
    def __init__(self, engine: OpenVinoEngine) -> None:
        self._engine = engine
        self._answers: set[_Answer] = set()
        self._has_work = asyncio.Event()

    async def generate(self, token_ids: Sequence[TokenId], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """The answer, piece by piece; to leave the iteration cancels the request."""
        try:
            answer = _Answer(self._engine.add(token_ids, sampling))
        except RuntimeError as error:
            yield Piece(fault=f"OpenVINO refused the request: {last_line(error)}")
            return
        self._answers.add(answer)
        self._has_work.set()
        try:
            while True:
                piece = await answer.pieces.get()
                yield piece
                if piece.is_last:
                    return
        finally:
            if answer in self._answers:
                self._answers.remove(answer)
                answer.generation.cancel()
                self._has_work.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._engine.has_work:
                try:
                    self._engine.step()
                except RuntimeError as error:
                    self._fail_all(last_line(error))
                    break
                self._deliver()
                for _ in range(LOOP_TURNS):
                    await asyncio.sleep(0)

    def _deliver(self) -> None:
        brought: list[tuple[_Answer, list[TokenId], str | None]] = []
        for answer in tuple(self._answers):
            token_ids: list[TokenId] = []
            finish_reason = None
            for output in answer.generation.outputs():
                token_ids += output.token_ids
                finish_reason = output.finish_reason
            answer.window += token_ids
            if token_ids or finish_reason is not None:
                brought.append((answer, token_ids, finish_reason))
            elif answer.generation.is_given_up:
                self._answers.discard(answer)
                answer.pieces.put_nowait(Piece(fault="the KV cache has no room for this request; raise --kv-cache-gb"))
        texts = self._engine.spell([answer.window for answer, _, _ in brought]) if brought else []
        for (answer, token_ids, finish_reason), text in zip(brought, texts, strict=True):
            piece = self._next_text(answer, text, is_last=finish_reason is not None)
            answer.pieces.put_nowait(Piece(piece, token_ids, finish_reason))
            if finish_reason is not None:
                self._answers.discard(answer)

    def _next_text(self, answer: _Answer, text: str, *, is_last: bool) -> str:
        """What of the window's text was not sent. The beginning of a character waits for its end."""
        if text.endswith(_UNFINISHED) and not is_last:
            return ""
        piece = text[answer.num_sent :]
        answer.num_sent = len(text)
        if len(answer.window) > WINDOW_TOKENS:
            del answer.window[:-KEPT_TOKENS]
            answer.num_sent = len(self._engine.spell([answer.window])[0])
        return piece

    def _fail_all(self, fault: str) -> None:
        for answer in self._answers:
            answer.generation.cancel()
            answer.pieces.put_nowait(Piece(fault=f"OpenVINO failed: {fault}"))
        self._answers.clear()
