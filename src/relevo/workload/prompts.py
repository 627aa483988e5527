"""Synthetic prompts of an exact length in tokens.

Two kinds: token ids (exact by construction, for endpoints that take them) and text (for everything else). Text needs
a caller that counts tokens; `fit_text` is a generator that yields candidates and is sent their counts, so that the
counter may be a local function or a server far away. This module knows neither tokenizers nor HTTP.

Content is random, so that two prompts share no prefix unless `hash_ids` of a trace say that they do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from relevo.core.ids import TokenId

T = TypeVar("T")

# Frequent English words; most tokenizers have one token for each with its leading space.
_WORD_TEXT = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all"
    " were when we there can an your which their said if do will each about how up out them then she many some so"
    " these would other into has more her two like him see time could no make than first been its who now people my"
    " made over did down only way find use may water long little very after words called just where most know get"
    " through back much before go good new write our used me man too any day same right look think also around another"
    " came come work three word must because does part even place well such here take why things help put years"
    " different away again off went old number great tell men say small every found still between name should home"
    " big give air line set own under read last never us left end along while might next sound below saw something"
    " thought both few those always looked show large often together asked house world going want school important"
    " until form food keep children feet land side without boy once animals life enough took sometimes four head above"
    " kind began almost live page got earth need far hand high year mother light parts country father let night"
    " following picture being study second eyes soon times story boys since white days ever paper hard near sentence"
    " better best across during today others however sure means knew try told young miles sun ways thing whole hear"
    " example heard several change answer room sea against top turned learn point city play toward five using himself"
    " usually"
)
WORDS: tuple[str, ...] = tuple(_WORD_TEXT.split())

MAX_FIT_ROUNDS = 24  # arbitrary: two rounds are normal, a tokenizer that needs more will not agree at all


@dataclass(frozen=True, slots=True)
class FittedText:
    """`num_tokens` is what the counter said of `text`; it may differ from the wish if no text of that length exists."""

    text: str
    num_tokens: int


def random_token_ids(num_tokens: int, token_ids: Sequence[TokenId], rng: random.Random) -> list[TokenId]:
    """`num_tokens` ids drawn from `token_ids` (ordinary tokens of the model's vocabulary)."""
    return rng.choices(token_ids, k=num_tokens)


def hashed_run(num_items: int, hash_ids: Sequence[int], block_size: int, items: Sequence[T], *, seed: int) -> list[T]:
    """A prompt of token ids (or words) whose run i of `block_size` items depends on hash_ids[i] and `seed` alone.

    Prompts with equal leading hash ids share that prefix, as in the trace. Items beyond the last hash id, if the
    trace is short of them, repeat its content.
    """
    prompt: list[T] = []
    index = 0
    while len(prompt) < num_items:
        hash_id = hash_ids[min(index, len(hash_ids) - 1)]
        prompt += random.Random(f"{seed}:{hash_id}").choices(items, k=block_size)
        index += 1
    return prompt[:num_items]


def fit_text(
    num_tokens: int, rng: random.Random, first_words: Sequence[str] | None = None
) -> Generator[str, int, FittedText]:
    """Yield texts, be sent the token count of each, return one with `num_tokens` tokens.

    The text begins with `first_words` (as many as fit), or with random ones.

    A count may include a fixed overhead (a chat template): the text is made shorter by as much. If no text fits
    (fewer tokens than the overhead, or a tokenizer that never gives this count), the closest one is returned.
    """
    words = list(first_words) if first_words else rng.choices(WORDS, k=num_tokens)
    closest: FittedText | None = None
    for _ in range(MAX_FIT_ROUNDS):
        text = " ".join(words)
        count = yield text
        if closest is None or abs(count - num_tokens) < abs(closest.num_tokens - num_tokens):
            closest = FittedText(text, count)
        missing = num_tokens - count
        if missing == 0:
            break
        if missing > 0:
            words += rng.choices(WORDS, k=missing)
        else:
            words = words[: max(1, len(words) + missing)]
            words[-1] = rng.choice(WORDS)  # so that a last word of several tokens cannot come back for ever
    assert closest is not None
    return closest


def text_of_length(num_tokens: int, count_tokens: Callable[[str], int], rng: random.Random) -> FittedText:
    """`fit_text` with a counter at hand."""
    fitting = fit_text(num_tokens, rng)
    text = next(fitting)
    while True:
        try:
            text = fitting.send(count_tokens(text))
        except StopIteration as done:
            fitted: FittedText = done.value
            return fitted
