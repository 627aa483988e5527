"""Makes prompts that a given server counts as exactly so many tokens.

Asks the server's own /tokenize, so that the counts are the server's: chat template included for chat, token ids for
completions. A server without /tokenize gets text of about one token a word, and the report says so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from relevo.bench.client import OpenAIClient
from relevo.bench.records import Endpoint
from relevo.core.errors import SettingsError
from relevo.workload.prompts import WORDS, FittedText, fit_text, hashed_run, random_token_ids
from relevo.workload.requests import WorkloadRequest


class PromptSource:
    """Prompts for one model behind one endpoint; the same seed gives the same prompts in the same order."""

    def __init__(
        self, client: OpenAIClient, model: str, endpoint: Endpoint, *, seed: int, token_ids: Sequence[int] | None
    ) -> None:
        self._client = client
        self._model = model
        self._endpoint = endpoint
        self._seed = seed
        self._rng = random.Random(f"prompts:{seed}")
        self._token_ids = token_ids

    @property
    def token_ids(self) -> Sequence[int] | None:
        """Ids of ordinary words; None if the server does not tell."""
        return self._token_ids

    @classmethod
    async def open(cls, client: OpenAIClient, model: str, endpoint: Endpoint, *, seed: int) -> PromptSource:
        """Ask the server for the ids of ordinary words; they are the vocabulary of token-id prompts."""
        token_ids = await client.tokenize({"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False})
        ordinary = sorted(set(token_ids)) if token_ids else None
        return cls(client, model, endpoint, seed=seed, token_ids=ordinary)

    @property
    def exact(self) -> bool:
        """False: the server has no /tokenize, lengths are about one token a word."""
        return self._token_ids is not None

    async def make(self, num_tokens: int, traced: WorkloadRequest | None = None) -> tuple[str | list[int], int]:
        """A prompt and its length in tokens; one that shares the prefixes that `traced` names by hash id."""
        hash_ids = traced.hash_ids if traced else ()
        block_size = traced.hash_block_size if traced else 1
        if self._endpoint is Endpoint.COMPLETIONS and self._token_ids is not None:
            if hash_ids:
                return hashed_run(num_tokens, hash_ids, block_size, self._token_ids, seed=self._seed), num_tokens
            return random_token_ids(num_tokens, self._token_ids, self._rng), num_tokens
        words = hashed_run(num_tokens, hash_ids, block_size, WORDS, seed=self._seed) if hash_ids else None
        fitted = await self._fit(num_tokens, words)
        return fitted.text, fitted.num_tokens

    async def _fit(self, num_tokens: int, words: Sequence[str] | None) -> FittedText:
        fitting = fit_text(num_tokens, self._rng, words)
        text = next(fitting)
        while True:
            count = await self._count(text) if self.exact else num_tokens
            try:
                text = fitting.send(count)
            except StopIteration as done:
                fitted: FittedText = done.value
                break
        if fitted.num_tokens > num_tokens and " " not in fitted.text:
            raise SettingsError(
                f"an input length of {num_tokens} tokens is too short: one word in the chat template already makes"
                f" {fitted.num_tokens}; ask for more or use --endpoint completions"
            )
        return fitted

    async def _count(self, text: str) -> int:
        body: dict[str, Any] = {"model": self._model}
        if self._endpoint is Endpoint.CHAT:
            body |= {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        else:
            body |= {"prompt": text}
        token_ids = await self._client.tokenize(body)
        if token_ids is None:
            raise SettingsError(f"{self._client.url}/tokenize stopped answering; use --endpoint completions")
        return len(token_ids)
