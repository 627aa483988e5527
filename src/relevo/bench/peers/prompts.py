"""Prompts that every server of a comparison gets alike: one text, its token ids, and how many they are.

The tokens are counted by one server (ours) for all. A server that takes ids gets the ids, so that lengths are exact
there; the others get the text the ids were made from. Every prompt is new: no server has its prefix cached.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from relevo.bench.client import OpenAIClient
from relevo.core.errors import StartError
from relevo.core.ids import TokenId
from relevo.workload.prompts import fit_text


@dataclass(frozen=True, slots=True)
class PeerPrompt:
    text: str
    token_ids: tuple[TokenId, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


async def make_prompt(client: OpenAIClient, model: str, num_tokens: int, rng: random.Random) -> PeerPrompt:
    """Random words that `client`'s /tokenize counts as `num_tokens` tokens.

    Raises StartError if the server has no /tokenize or no words give that count.
    """
    fitting = fit_text(num_tokens, rng)
    text = next(fitting)
    while True:
        token_ids = await client.tokenize({"model": model, "prompt": text})
        if token_ids is None:
            raise StartError(f"{client.url} has no /tokenize, which counts the prompts' tokens; is it a Relevo server?")
        if len(token_ids) == num_tokens:
            return PeerPrompt(text, tuple(token_ids))
        try:
            text = fitting.send(len(token_ids))
        except StopIteration:
            raise StartError(f"no prompt of {num_tokens} tokens could be made with {client.url}/tokenize") from None
