"""POST /v1/completions. Source: OpenAI API reference, "Completions"; vLLM's extensions where they exist."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.generation.answer import answer
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.generation.grammar import text_cost
from relevo.gateway.generation.prepare import Prepared, prepare
from relevo.gateway.generation.prompts import Prompt
from relevo.gateway.generation.spec import PlainPrompt
from relevo.gateway.http.call import Call, system_fingerprint
from relevo.gateway.openai.logprobs import completion_logprobs
from relevo.gateway.openai.prompt_logprobs import (
    EchoedLogprobs,
    ListedLogprobs,
    PromptSheets,
    num_prompt_logprobs,
)
from relevo.gateway.openai.requests import generation_spec, response_id
from relevo.gateway.openai.schemas import CompletionFields
from relevo.gateway.openai.unsupported import FIELDS_WITHOUT_EFFECT, refuse_fields, refuse_unsupported
from relevo.gateway.openai.writer import OpenAIWriter, tier_json
from relevo.gateway.text.parts import Delta, text_of
from relevo.gateway.text.served_models import TextTokenizer

DEFAULT_MAX_TOKENS = 16  # required by the API reference


async def completions(call: Call) -> Response | None:
    """Answer one completion request, of one or several prompts. Raises RelevoError, ClientGone."""
    return await answer(call, *await call.read(partial(_prepare, call), cost=text_cost))


def _prepare(call: Call, body: bytes) -> tuple[Prepared, OpenAIWriter]:
    """What is left of the body when this returns is the request's alone. Raises RelevoError."""
    fields = call.parse(body, CompletionFields, FIELDS_WITHOUT_EFFECT, refuse_fields)
    served, model = call.context.models.meant_by(fields.model)
    refuse_unsupported(fields)
    _refuse_unsupported_here(fields)
    sheets = PromptSheets(
        served,
        num_echoed=fields.logprobs if fields.echo else None,
        num_listed=num_prompt_logprobs(fields.prompt_logprobs),
    )
    is_prompt_only = _is_prompt_only(fields)
    spec = generation_spec(
        fields,
        [_prompt(fields, content) for content in _split_prompts(fields.prompt)],
        num_logprobs=fields.logprobs,
        sheets=sheets,
        is_prompt_only=is_prompt_only,
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    prepared = prepare(call, served, model, spec)
    shape = CompletionShape(
        id=response_id(call, fields, "cmpl"),
        created=int(time.time()),
        model=model,
        fingerprint=system_fingerprint(served),
        tokenizer=served.tokenizer,
        service_tier=prepared.service_tier,
        num_logprobs=fields.logprobs,
        prompts=prepared.prompts,
        sheets=sheets,
        num_choices_per_prompt=fields.n,
        return_token_ids=fields.return_token_ids,
    )
    return prepared, OpenAIWriter.of(shape, prepared.num_choices, prepared.usage, fields.stream_options)


def _prompt(fields: CompletionFields, content: str | list[TokenId]) -> PlainPrompt:
    return PlainPrompt(content=content, add_special_tokens=fields.add_special_tokens, is_repeated=fields.echo)


def _split_prompts(prompt: str | list[Any]) -> Sequence[str | list[TokenId]]:
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1 or int in kinds:
        raise InvalidRequest("'prompt' mixes texts and token ids; send one kind.", param="prompt")
    if not prompt:
        raise InvalidRequest("'prompt' must not be empty.", param="prompt")
    return prompt


def _refuse_unsupported_here(fields: CompletionFields) -> None:
    if fields.suffix:
        raise InvalidRequest("'suffix' is not supported.", param="suffix")
    if fields.best_of is not None and fields.best_of != fields.n:
        raise InvalidRequest("'best_of' is not supported; use 'n'.", param="best_of")


def _is_prompt_only(fields: CompletionFields) -> bool:
    """Whether nothing is to be generated; `fields` then asks for the one token that has to be drawn. Raises
    InvalidRequest."""
    if fields.max_tokens != 0:
        return False
    if not fields.echo and num_prompt_logprobs(fields.prompt_logprobs) is None:
        raise InvalidRequest(
            "'max_tokens' of 0 leaves nothing to answer; send 'echo' or 'prompt_logprobs' with it, or at least 1.",
            param="max_tokens",
        )
    fields.max_tokens = 1
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    id: str
    created: int  # Unix seconds
    model: str
    fingerprint: str
    tokenizer: TextTokenizer
    service_tier: str | None = None
    num_logprobs: int | None
    prompts: Sequence[Prompt]
    num_choices_per_prompt: int
    return_token_ids: bool
    sheets: PromptSheets | None = None  # None: no more is shown of prompts than their text

    @property
    def opens_late(self) -> bool:
        return self.sheets is not None and self.sheets.num_prompt_logprobs is not None

    def opening(self, index: int) -> dict[str, Any] | None:
        prompt, echoed, listed = self._prompt(index), self._echoed(index), self._listed(index)
        if prompt.text is None and not self.return_token_ids and listed is None:
            return None
        chunk = self._chunk(index, prompt.text or "")
        if echoed is not None:
            chunk["choices"][0]["logprobs"] = echoed.parts.whole({})
        if listed is not None:
            chunk["choices"][0]["prompt_logprobs"] = listed.shown()
        if self.return_token_ids:
            chunk["choices"][0] |= {"prompt_token_ids": prompt.token_ids, "token_ids": []}
        return chunk

    @property
    def tells_tokens(self) -> bool:
        return self.num_logprobs is not None or self.return_token_ids

    def logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self.num_logprobs is None:
            return None
        num_chars = len(self._prompt(delta.index).text or "")  # that the answer repeats before
        offsets = [offset + num_chars for offset in delta.text_offsets]
        return completion_logprobs(self.tokenizer, delta.tokens, offsets, self.num_logprobs)

    def delta(self, delta: Delta) -> dict[str, Any] | None:
        text = text_of(delta.parts)
        if not text and not (delta.tokens and self.tells_tokens):
            return None
        chunk = self._chunk(delta.index, text)
        choice = chunk["choices"][0]
        if self.num_logprobs is not None:
            choice["logprobs"] = self.logprobs(delta)
        if self.return_token_ids:
            choice["token_ids"] = [token.token_id for token in delta.tokens]
        return chunk

    def finish(self, delta: Delta) -> dict[str, Any]:
        chunk = self._chunk(delta.index, "")
        chunk["choices"][0] |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return chunk

    def usage_only(self) -> dict[str, Any]:
        return self._envelope([])

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        return self._envelope([self._whole_choice(choice) for choice in choices])

    def _whole_choice(self, choice: FinishedChoice) -> dict[str, Any]:
        prompt, echoed, listed = self._prompt(choice.index), self._echoed(choice.index), self._listed(choice.index)
        logprobs = None
        if self.num_logprobs is not None:
            parts = choice.logprobs if echoed is None else choice.logprobs.after(echoed.parts)
            logprobs = parts.whole(completion_logprobs(self.tokenizer, (), (), 0))
        shown = {
            "index": choice.index,
            "text": (prompt.text or "") + text_of(choice.parts),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if listed is not None:
            shown["prompt_logprobs"] = listed.shown()
        if self.return_token_ids:
            shown["prompt_token_ids"] = prompt.token_ids
            shown["token_ids"] = choice.token_ids.tolist()
        return shown

    def _echoed(self, index: int) -> EchoedLogprobs | None:
        return self.sheets.echoed(index // self.num_choices_per_prompt) if self.sheets is not None else None

    def _listed(self, index: int) -> ListedLogprobs | None:
        return self.sheets.listed(index // self.num_choices_per_prompt) if self.sheets is not None else None

    def _prompt(self, index: int) -> Prompt:
        return self.prompts[index // self.num_choices_per_prompt]

    def _chunk(self, index: int, text: str) -> dict[str, Any]:
        return self._envelope([{"index": index, "text": text, "logprobs": None, "finish_reason": None}])

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            **tier_json(self.service_tier),
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }
