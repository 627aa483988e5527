"""Stands in for the modules `openvino` and `openvino_genai`: one token per request and step, of a scripted text.

A token is a byte, so that a character of several bytes comes in several tokens.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

EOS = 256
NUM_TOKENS = 100_000  # those above EOS spell nothing


class Status(Enum):
    RUNNING = 0
    FINISHED = 1
    IGNORED = 2
    CANCEL = 3


class Reason(Enum):
    NONE = 0
    STOP = 1
    LENGTH = 2


class Handle:
    def __init__(self, prompt: list[int], config: Any) -> None:
        self.prompt, self.config = prompt, config
        self.status = Status.RUNNING
        self.num_generated = 0
        self.unread: deque[tuple[int, Reason]] = deque()

    def can_read(self) -> bool:
        return bool(self.unread)

    def read(self) -> dict[int, Any]:
        token_id, reason = self.unread.popleft()
        return {0: SimpleNamespace(generated_ids=[token_id], finish_reason=reason)}

    def get_status(self) -> Status:
        return self.status

    def cancel(self) -> None:
        self.status = Status.CANCEL


@dataclass
class FakeOpenVino:
    """Set the attributes before; read `handles`, `schedulers`, `properties` after."""

    text: str = "some text of a model, "
    ends_after: int | None = None  # tokens, unless the request ignores the end
    load_error: str = ""
    add_error: str = ""
    fails_at_step: int | None = None
    has_room: bool = True
    handles: list[Handle] = field(default_factory=list)
    most_at_once: int = 0
    num_steps: int = 0
    schedulers: list[Any] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    device: str = ""

    def install(self, modules: dict[str, Any] = sys.modules) -> None:  # type: ignore[assignment]
        genai = SimpleNamespace(
            __version__="2026.4.1.0-scripted",
            SchedulerConfig=SimpleNamespace,
            GenerationConfig=SimpleNamespace,
            ContinuousBatchingPipeline=self._pipeline,
        )
        modules["openvino_genai"] = genai
        modules["openvino"] = SimpleNamespace(Tensor=lambda rows: rows)

    def _pipeline(self, model: str, scheduler: Any, device: str, properties: dict[str, Any]) -> FakeOpenVino:
        if self.load_error:
            raise RuntimeError(self.load_error)
        self.schedulers.append(scheduler)
        self.device, self.properties = device, properties
        return self

    # ---- the pipeline ----

    def get_tokenizer(self) -> FakeOpenVino:
        return self

    def has_non_finished_requests(self) -> bool:
        return any(handle.status in (Status.RUNNING, Status.CANCEL) for handle in self.handles)

    def add_request(self, request_id: int, prompt: Any, config: Any) -> Handle:
        if self.add_error:
            raise RuntimeError(self.add_error)
        assert str(prompt.dtype) == "int64" and len(prompt) == 1
        self.handles.append(Handle([int(each) for each in prompt[0]], config))
        return self.handles[-1]

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.fails_at_step:
            raise RuntimeError("Exception from src/core.cpp:42:\ncheck failed\nout of memory")
        at_work = [handle for handle in self.handles if handle.status is Status.RUNNING]
        self.most_at_once = max(self.most_at_once, len(at_work))
        self.handles = [handle for handle in self.handles if handle.status is not Status.CANCEL]
        for handle in at_work:
            self._advance(handle)

    def _advance(self, handle: Handle) -> None:
        if not self.has_room:
            handle.status = Status.IGNORED
            return
        spelled = self.text.encode()
        token_id = spelled[handle.num_generated % len(spelled)]
        handle.num_generated += 1
        reason = Reason.NONE
        if handle.num_generated == self.ends_after and not handle.config.ignore_eos:
            token_id, reason = EOS, Reason.STOP
        elif handle.num_generated == handle.config.max_new_tokens:
            reason = Reason.LENGTH
        handle.unread.append((token_id, reason))
        if reason is not Reason.NONE:
            handle.status = Status.FINISHED

    # ---- the tokenizer ----

    def encode(self, text: str) -> Any:
        return SimpleNamespace(input_ids=SimpleNamespace(data=[list(text.encode())]))

    def decode(self, rows: list[list[int]]) -> list[str]:
        return [bytes(each for each in row if each < EOS).decode(errors="replace") for row in rows]

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(NUM_TOKENS)}

    def get_eos_token_id(self) -> int:
        return EOS
