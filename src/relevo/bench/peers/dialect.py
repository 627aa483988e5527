"""How a server wants to be asked: found out by asking, not by its name.

A probe sends the same short prompt as token ids, as text and as a chat message and takes the first way that brings
exactly the number of tokens asked for. The one thing that is known by name is the field that keeps llama.cpp from
reusing its prompt cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.peers.prompts import PeerPrompt
from relevo.bench.records import ClientRecord, Endpoint, PlannedRequest
from relevo.core.errors import StartError

EXACT_LENGTH: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0.0}
BY_OWNER: Mapping[str, Mapping[str, Any]] = {"llamacpp": {"cache_prompt": False}}
PROBE_TOKENS = 3  # output tokens; arbitrary, small


class PromptForm(StrEnum):
    TOKEN_IDS = "token ids"
    TEXT = "text"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    model: str
    form: PromptForm
    extra: Mapping[str, Any] = field(default_factory=dict)  # body fields of every request

    def planned(self, prompt: PeerPrompt, max_tokens: int) -> PlannedRequest:
        content = list(prompt.token_ids) if self.form is PromptForm.TOKEN_IDS else prompt.text
        return PlannedRequest(prompt=content, num_input_tokens=prompt.num_tokens, max_tokens=max_tokens)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.CHAT if self.form is PromptForm.CHAT else Endpoint.COMPLETIONS

    async def ask(self, client: OpenAIClient, prompt: PeerPrompt, max_tokens: int, index: int = 0) -> ClientRecord:
        """One streamed request; a failure is in the record."""
        planned = self.planned(prompt, max_tokens)
        record = ClientRecord(index=index, num_wanted_input_tokens=planned.num_input_tokens, max_tokens=max_tokens)
        await client.stream(planned, record, model=self.model, endpoint=self.endpoint, extra=dict(self.extra))
        return record


async def probe_dialect(client: OpenAIClient, model: str, prompt: PeerPrompt, extra: Mapping[str, Any]) -> Dialect:
    """The first form that is answered in full. Raises StartError with what each form came to."""
    fields = {**EXACT_LENGTH, **BY_OWNER.get(await client.owner(), {}), **extra}
    tried: list[str] = []
    for form in PromptForm:
        dialect = Dialect(model=model, form=form, extra=fields)
        record = await dialect.ask(client, prompt, PROBE_TOKENS)
        fault = answer_fault(record, dialect)
        if fault is None:
            return dialect
        tried.append(f"{form}: {fault}")
    raise StartError(f"{client.url} gave {PROBE_TOKENS} tokens for no form of prompt ({'; '.join(tried)})")


def answer_fault(record: ClientRecord, dialect: Dialect) -> str | None:
    """What is wrong with an answer that was to have `max_tokens` tokens; None: nothing.

    A server that does not say how long it took the prompt to be is believed; a chat template may add to the prompt.
    """
    if record.error is not None:
        return f"{record.error}: {record.error_detail}".strip(": ")
    if record.num_output_tokens != record.max_tokens:
        return f"{record.num_output_tokens} output tokens instead of {record.max_tokens}"
    if not record.chunk_at_ns:
        return "no output was streamed"
    counted, wanted = record.num_prompt_tokens, record.num_wanted_input_tokens
    if counted is not None and dialect.form is not PromptForm.CHAT and abs(counted - wanted) > 1:
        return f"the prompt of {wanted} tokens was counted as {counted}"
    return None
