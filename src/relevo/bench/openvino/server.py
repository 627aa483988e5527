"""The HTTP side: `/v1/completions` (whole and streamed), `/v1/models`, `/health`.

A field that it does not know is refused, so that nothing is measured with a setting that had no effect. Source: the
OpenAI API reference (completions); `ignore_eos` and `token_ids` as vLLM defines them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import msgspec
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from relevo.bench.openvino.engine import OpenVinoEngine, Sampling
from relevo.bench.openvino.steps import Piece, StepLoop
from relevo.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, RequestError, RequestTooLarge
from relevo.core.ids import TokenId

SHUTDOWN_S = 2  # for answers under way; arbitrary
LEAST_BODY_BYTES, BYTES_PER_TOKEN = 2**16, 16  # of a body, whatever the context is; for each token of it; arbitrary
_STATUS = {ModelNotFound.code: 404, RequestTooLarge.code: 413}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class CompletionFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
        )


class CompletionServer:
    """Serves one engine under the name `model`."""

    def __init__(self, engine: OpenVinoEngine, model: str, max_model_len: int) -> None:
        """`max_model_len`: tokens of a prompt and its answer; it bounds what a body may hold too."""
        self._engine = engine
        self._model = model
        self._max_model_len = max_model_len
        self._max_body_bytes = max(LEAST_BODY_BYTES, BYTES_PER_TOKEN * max_model_len)
        self._steps = StepLoop(engine)
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
            ],
        )

    async def serve(self, listener: socket.socket) -> None:
        """Until a signal ends it, which uvicorn raises again."""
        config = uvicorn.Config(
            self.app, lifespan="off", ws="none", log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S
        )
        async with self.stepping():
            await uvicorn.Server(config).serve(sockets=[listener])

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """Requests are answered inside of it."""
        async with asyncio.TaskGroup() as tasks:
            steps = tasks.create_task(self._steps.run())
            try:
                yield
            finally:
                steps.cancel()

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        card = {"id": self._model, "object": "model", "owned_by": "openvino"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _completions(self, request: Request) -> Response:
        try:
            fields = self._parsed(await self._read(request))
            token_ids = self._token_ids(fields.prompt)
            self._check_length(len(token_ids), fields.max_tokens)
        except RequestError as error:
            return JSONResponse(_error(error.message, error.code), _STATUS.get(error.code, 400))
        answer = self._steps.generate(token_ids, fields.sampling)
        if fields.stream:
            return StreamingResponse(self._events(fields, len(token_ids), answer), media_type="text/event-stream")
        return await self._whole(len(token_ids), answer)

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                raise RequestTooLarge(
                    f"the body is larger than {self._max_body_bytes} bytes, which is enough for "
                    f"{self._max_model_len} tokens; send less, or start the server with a larger --max-model-len"
                )
        return bytes(body)

    def _check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        if num_prompt_tokens + max_tokens > self._max_model_len:
            raise ContextLengthExceeded(
                f"a prompt of {num_prompt_tokens} tokens and {max_tokens} more are above {self._max_model_len}; send "
                "less, lower max_tokens, or start the server with a larger --max-model-len",
                num_tokens=num_prompt_tokens,
                max_tokens=self._max_model_len,
            )

    def _parsed(self, body: bytes) -> CompletionFields:
        try:
            fields = msgspec.json.decode(body, type=CompletionFields)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"{error}; this server takes {', '.join(CompletionFields.__struct_fields__)}"
            ) from error
        if fields.model not in (None, self._model):
            raise ModelNotFound(f"no model is called {fields.model}; this server has {self._model}")
        return fields

    def _token_ids(self, prompt: str | list[int]) -> list[TokenId]:
        token_ids = self._engine.encode(prompt) if isinstance(prompt, str) else [TokenId(each) for each in prompt]
        if not token_ids:
            raise InvalidRequest("the prompt is empty; give at least one token")
        if max(token_ids) >= self._engine.num_tokens:
            raise InvalidRequest(f"the vocabulary has {self._engine.num_tokens} tokens, and no {max(token_ids)}")
        return token_ids

    async def _events(
        self, fields: CompletionFields, num_prompt_tokens: int, answer: AsyncGenerator[Piece, None]
    ) -> AsyncIterator[bytes]:
        num_tokens = 0
        async with aclosing(answer):
            async for piece in answer:
                if piece.fault is not None:
                    yield _event(_error(piece.fault, "internal_error"))
                    return
                num_tokens += len(piece.token_ids)
                yield _event(self._body([_choice(piece.text, piece.token_ids, piece.finish_reason)]))
        if fields.stream_options is not None and fields.stream_options.include_usage:
            yield _event(self._body([]) | {"usage": _usage(num_prompt_tokens, num_tokens)})
        yield b"data: [DONE]\n\n"

    async def _whole(self, num_prompt_tokens: int, answer: AsyncGenerator[Piece, None]) -> Response:
        pieces = [piece async for piece in answer]
        last = pieces[-1]
        if last.fault is not None:
            return JSONResponse(_error(last.fault, "internal_error"), 500)
        token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
        choice = _choice("".join(piece.text for piece in pieces), token_ids, last.finish_reason)
        return JSONResponse(self._body([choice]) | {"usage": _usage(num_prompt_tokens, len(token_ids))})

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        named = {"id": "cmpl-openvino", "object": "text_completion", "created": int(time.time())}
        return {**named, "model": self._model, "choices": choices}


def _choice(text: str, token_ids: Any, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "token_ids": token_ids, "logprobs": None, "finish_reason": finish_reason}


def _usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    total = num_prompt_tokens + num_tokens
    return {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens, "total_tokens": total}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "code": code}}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
