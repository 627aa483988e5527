"""POST /v1/chat/completions. Source: OpenAI API reference, "Chat"; vLLM's extensions where they exist."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.http.call import Call, system_fingerprint
from relevo.gateway.openai.answers import FinishedChoice, Job, answer
from relevo.gateway.openai.logprobs import chat_logprobs
from relevo.gateway.openai.prompts import chat_token_ids
from relevo.gateway.openai.requests import new_generations, response_id
from relevo.gateway.openai.schemas import ChatFields
from relevo.gateway.openai.unsupported import (
    FIELDS_WITHOUT_EFFECT,
    refuse_fields,
    refuse_tools,
    refuse_unsupported,
)
from relevo.gateway.text.generation import TextDelta
from relevo.gateway.text.served_models import TextTokenizer


async def chat_completions(call: Call) -> Response | None:
    """Answer one chat completion request. Raises RelevoError, ClientGone."""
    return await answer(call, await call.read(partial(_job, call)))


def _job(call: Call, body: bytes) -> Job:
    """What is left of the body when this returns is the job's alone. Raises RelevoError."""
    fields = call.parse(body, ChatFields, FIELDS_WITHOUT_EFFECT, refuse_fields)
    served, model = call.context.models.meant_by(fields.model)
    num_logprobs = _num_logprobs(fields)
    refuse_unsupported(fields)
    refuse_tools(served, fields)
    if fields.echo:
        raise InvalidRequest("'echo' is only supported by /v1/completions.", param="echo")
    token_ids = chat_token_ids(served, fields)
    generations = new_generations(
        call,
        served,
        fields,
        [token_ids],
        model=model,
        num_logprobs=num_logprobs,
        default_max_tokens=None,
        continues_text=fields.continue_final_message,
    )
    answer_format = ChatFormat(
        id=response_id(call, fields, "chatcmpl"),
        created=int(time.time()),
        model=model,
        fingerprint=system_fingerprint(served),
        tokenizer=served.tokenizer,
        num_logprobs=num_logprobs,
        prompt_token_ids=token_ids if fields.return_token_ids else None,
    )
    options = fields.stream_options
    return Job(
        model=model,
        generations=generations,
        num_choices_per_prompt=fields.n,
        answer_format=answer_format,
        stream=fields.stream,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )


def _num_logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    id: str
    created: int  # Unix seconds
    model: str
    fingerprint: str
    tokenizer: TextTokenizer
    num_logprobs: int | None
    prompt_token_ids: list[TokenId] | None  # None: token ids are not to be returned

    def opening(self, index: int) -> dict[str, Any]:
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        if self.prompt_token_ids is not None:
            chunk["prompt_token_ids"] = self.prompt_token_ids
        return chunk

    @property
    def tells_tokens(self) -> bool:
        return self.num_logprobs is not None or self.prompt_token_ids is not None

    def logprobs(self, delta: TextDelta) -> dict[str, Any] | None:
        if self.num_logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, delta.tokens, self.num_logprobs)

    def delta(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        if not delta.text and not (delta.tokens and self.tells_tokens):
            return None
        chunk = self._chunk(index, {"content": delta.text})
        choice = chunk["choices"][0]
        if self.num_logprobs is not None:
            choice["logprobs"] = self.logprobs(delta)
        if self.prompt_token_ids is not None:
            choice["token_ids"] = [token.token_id for token in delta.tokens]
        return chunk

    def finish(self, index: int, delta: TextDelta) -> dict[str, Any]:
        chunk = self._chunk(index, {})
        chunk["choices"][0] |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return chunk

    def usage_only(self) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [])

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        body = self._envelope("chat.completion", [self._whole_choice(choice) for choice in choices])
        if self.prompt_token_ids is not None:
            body["prompt_token_ids"] = self.prompt_token_ids
        return body

    def _whole_choice(self, choice: FinishedChoice) -> dict[str, Any]:
        logprobs = None
        if self.num_logprobs is not None:
            logprobs = choice.logprobs.whole(chat_logprobs(self.tokenizer, (), 0))
        shown = {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.prompt_token_ids is not None:
            shown["token_ids"] = choice.token_ids.tolist()
        return shown

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }
