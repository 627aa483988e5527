"""POST /v1/chat/completions. Source: OpenAI API reference, "Chat"; vLLM's extensions where they exist."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
from relevo.gateway.generation.reasoning import with_effort
from relevo.gateway.generation.spec import ChatPrompt
from relevo.gateway.http.call import Call, system_fingerprint
from relevo.gateway.openai.logprobs import chat_logprobs
from relevo.gateway.openai.prompt_logprobs import PromptSheets, num_prompt_logprobs
from relevo.gateway.openai.requests import generation_spec, refuse_template, response_id
from relevo.gateway.openai.schemas import ChatFields
from relevo.gateway.openai.tools import function_tools, tool_choice
from relevo.gateway.openai.unsupported import (
    FIELDS_WITHOUT_EFFECT,
    refuse_fields,
    refuse_unsupported,
)
from relevo.gateway.openai.writer import OpenAIWriter, tier_json
from relevo.gateway.text.parts import Delta, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart
from relevo.gateway.text.served_models import TextTokenizer


async def chat_completions(call: Call) -> Response | None:
    """Answer one chat completion request. Raises RelevoError, ClientGone."""
    return await answer(call, *await call.read(partial(_prepare, call), cost=text_cost))


def _prepare(call: Call, body: bytes) -> tuple[Prepared, OpenAIWriter]:
    """What is left of the body when this returns is the request's alone. Raises RelevoError."""
    fields = call.parse(body, ChatFields, FIELDS_WITHOUT_EFFECT, refuse_fields)
    served, model = call.context.models.meant_by(fields.model)
    num_logprobs = _num_logprobs(fields)
    refuse_unsupported(fields)
    refuse_template(fields.chat_template)
    if fields.echo:
        raise InvalidRequest("'echo' is only supported by /v1/completions.", param="echo")
    fields.max_tokens = fields.max_completion_tokens or fields.max_tokens
    sheets = PromptSheets(served, num_listed=num_prompt_logprobs(fields.prompt_logprobs))
    spec = generation_spec(fields, [_prompt(fields)], num_logprobs=num_logprobs, sheets=sheets)
    prepared = prepare(call, served, model, spec)
    shape = ChatShape(
        id=response_id(call, fields, "chatcmpl"),
        created=int(time.time()),
        model=model,
        fingerprint=system_fingerprint(served),
        tokenizer=served.tokenizer,
        service_tier=prepared.service_tier,
        num_logprobs=num_logprobs,
        sheets=sheets,
        shows_reasoning=fields.include_reasoning,
        prompt_token_ids=prepared.prompts[0].token_ids if fields.return_token_ids else None,
    )
    return prepared, OpenAIWriter.of(shape, prepared.num_choices, prepared.usage, fields.stream_options)


def _prompt(fields: ChatFields) -> ChatPrompt:
    template_kwargs = with_effort(fields.chat_template_kwargs, fields.reasoning_effort, param="reasoning_effort")
    tools = function_tools(fields.tools or ())
    return ChatPrompt(
        messages=fields.messages,
        tools=tools,
        tool_choice=tool_choice(fields.tool_choice, is_parallel=fields.parallel_tool_calls is not False),
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        add_special_tokens=fields.add_special_tokens,
        template_kwargs=template_kwargs,
    )


def _num_logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    id: str
    created: int  # Unix seconds
    model: str
    fingerprint: str
    tokenizer: TextTokenizer
    service_tier: str | None = None
    num_logprobs: int | None
    shows_reasoning: bool = True
    prompt_token_ids: Sequence[TokenId] | None  # None: token ids are not to be returned
    sheets: PromptSheets | None = None  # None: no more is shown of the prompt

    def opening(self, index: int) -> dict[str, Any]:
        chunk = self._chunk(index, {"role": "assistant", "content": ""})
        if self.prompt_token_ids is not None:
            chunk["prompt_token_ids"] = self.prompt_token_ids
        return chunk | self._prompt_logprobs()

    @property
    def opens_late(self) -> bool:
        return False  # it has one prompt, and the first delta comes after all that is told of it

    @property
    def tells_tokens(self) -> bool:
        return self.num_logprobs is not None or self.prompt_token_ids is not None

    def logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self.num_logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, delta.tokens, self.num_logprobs)

    def delta(self, delta: Delta) -> dict[str, Any] | None:
        shown = self._members(delta.parts)
        if not shown and not (delta.tokens and self.tells_tokens):
            return None
        chunk = self._chunk(delta.index, shown or {"content": ""})
        choice = chunk["choices"][0]
        if self.num_logprobs is not None:
            choice["logprobs"] = self.logprobs(delta)
        if self.prompt_token_ids is not None:
            choice["token_ids"] = [token.token_id for token in delta.tokens]
        return chunk

    def finish(self, delta: Delta) -> dict[str, Any]:
        chunk = self._chunk(delta.index, {})
        chunk["choices"][0] |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return chunk

    def usage_only(self) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [])

    def whole(self, choices: Sequence[FinishedChoice]) -> dict[str, Any]:
        body = self._envelope("chat.completion", [self._whole_choice(choice) for choice in choices])
        if self.prompt_token_ids is not None:
            body["prompt_token_ids"] = self.prompt_token_ids
        return body | self._prompt_logprobs()

    def _whole_choice(self, choice: FinishedChoice) -> dict[str, Any]:
        logprobs = None
        if self.num_logprobs is not None:
            logprobs = choice.logprobs.whole(chat_logprobs(self.tokenizer, (), 0))
        shown = {
            "index": choice.index,
            "message": self._message(choice),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.prompt_token_ids is not None:
            shown["token_ids"] = choice.token_ids.tolist()
        return shown

    def _prompt_logprobs(self) -> dict[str, Any]:
        listed = self.sheets.listed(0) if self.sheets is not None else None
        return {} if listed is None else {"prompt_logprobs": listed.shown()}

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            **tier_json(self.service_tier),
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _message(self, choice: FinishedChoice) -> dict[str, Any]:
        members = self._members(choice.parts)
        for call in members.get("tool_calls", ()):
            del call["index"]  # of deltas only
        content = None if "tool_calls" in members else ""
        return {"role": "assistant", "content": content, "refusal": None, **members, "annotations": []}

    def _members(self, parts: Iterable[Part]) -> dict[str, Any]:
        """What a message, or a delta of one, has besides its role. Clients read reasoning under either of two names."""
        shown: dict[str, Any] = {}
        for part in parts:
            match part:
                case TextPart(text=text):
                    shown["content"] = shown.get("content", "") + text
                case ReasoningPart(text=text) if self.shows_reasoning:
                    shown["reasoning"] = shown["reasoning_content"] = shown.get("reasoning", "") + text
                case RefusalPart(text=text):
                    shown["refusal"] = shown.get("refusal", "") + text
                case ToolCallPart():
                    shown.setdefault("tool_calls", []).append(_tool_call(part))
        return shown


def _tool_call(part: ToolCallPart) -> dict[str, Any]:
    """The first delta of a call names it, later ones bring arguments alone."""
    function = {"name": part.name} if part.name else {}
    head = {"id": part.id, "type": "function"} if part.id else {}
    return {"index": part.index, **head, "function": function | {"arguments": part.arguments}}
