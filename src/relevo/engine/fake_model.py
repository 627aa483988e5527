"""A model without weights: its next token is a hash of everything the KV cache holds for the context.

Each token leaves a fingerprint that chains over its predecessors, so two contexts that differ anywhere have different
fingerprints from there on. Pure functions over uint64 arrays, modulo 2^64; the arena is the runner's business.

    f(i) = A * f(i-1) + mix(token(i), i)            A odd, f(-1) = 0
    next = mix(sum over i of mix(f(i) + i * C))     with seed, sample index and position mixed in unless greedy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.core.model import ModelConfig
from relevo.core.prompt_scores import PromptScores
from relevo.core.request import SamplingParams
from relevo.engine.fake_script import Line

Words = npt.NDArray[np.uint64]
Allowed = Callable[[TokenId], bool]  # whether a grammar lets a token through

VALUE_MASK = np.uint64(0x5BD1E9955BD1E995)  # arbitrary; what the V slot of a token holds is its fingerprint ^ this
_MASK = 2**64 - 1
_CHAIN = 0xD1342543DE82EF95  # A, odd; its inverse modulo 2^64 lets a run of tokens be summed at once
_CHAIN_INVERSE = pow(_CHAIN, -1, 2**64)
_POSITION = 0x9E3779B97F4A7C15

FAKE_MODEL = ModelConfig(
    architecture="fake",
    vocab_size=257,  # one token per byte, and one that ends a sequence
    hidden_size=1,
    intermediate_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_size=1,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position=32768,
    dtype="uint64",
)
SCRIPTED_MODEL = replace(FAKE_MODEL, max_position=262144)  # an agent's prompt is tens of kilobytes, a token each


def mix(words: Words) -> Words:
    """The finaliser of splitmix64, elementwise: a bijection in which every input bit changes about half the output."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    """`mix` of one word, reduced modulo 2^64."""
    word &= _MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _MASK
    return word ^ (word >> 31)


def _powers(count: int) -> tuple[Words, Words]:
    """The first `count` powers of _CHAIN and of its inverse, from the first one on; not to be written to."""
    chain, inverse = _power_table(1 << max(0, count - 1).bit_length())
    return chain[:count], inverse[:count]


@lru_cache  # one entry per power of two
def _power_table(count: int) -> tuple[Words, Words]:
    chain = np.cumprod(np.full(count, _CHAIN, dtype=np.uint64), dtype=np.uint64)
    inverse = np.cumprod(np.full(count, _CHAIN_INVERSE, dtype=np.uint64), dtype=np.uint64)
    return chain, inverse


def fingerprints(token_ids: list[TokenId] | tuple[TokenId, ...], start: int, before: int) -> Words:
    """Fingerprints of a run of tokens at positions start, start + 1, ...; `before` is that of position start - 1."""
    count = len(token_ids)
    positions = np.arange(start, start + count, dtype=np.uint64)
    fresh = mix(np.asarray(token_ids, dtype=np.uint64) + (positions + np.uint64(1)) * np.uint64(_POSITION))
    powers, inverse_powers = _powers(count)
    return powers * (np.uint64(before) + np.cumsum(fresh * inverse_powers, dtype=np.uint64))


def context_hash(keys: Words, values: Words) -> int:
    """One word that depends on every slot of the context, in order. Equals that of the right slots only for them."""
    return _mix_int(int(np.sum(_of_slots(keys, values), dtype=np.uint64)))


def context_hashes(keys: Words, values: Words) -> Words:
    """`context_hash` of every beginning of the context: of its first slot, of its first two, and so on."""
    return mix(np.cumsum(_of_slots(keys, values), dtype=np.uint64))


def _of_slots(keys: Words, values: Words) -> Words:
    places = np.arange(len(keys), dtype=np.uint64) * np.uint64(_POSITION)
    return mix(keys + places) + (values ^ VALUE_MASK) - keys


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """`eos_one_in`: a sequence ends at each token with probability 1 / eos_one_in; 0: only by its limits."""

    vocab_size: int = FAKE_MODEL.vocab_size
    eos_one_in: int = 0

    def sample(
        self,
        context: int,
        sampling: SamplingParams,
        eos_token_ids: tuple[TokenId, ...],
        sample_index: int,
        num_outputs: int,
        line: Line | None = None,
        allowed: Allowed | None = None,
    ) -> SampledToken:
        """The token after `num_outputs` output tokens of one continuation. End tokens come only where allowed.

        `line`: what it says, instead of hashes. `allowed`: by a grammar. The next one after what it would say is taken,
        and every fourth time an end token where it may end."""
        word = context
        if sampling.temperature > 0:
            for part in (sampling.seed, sample_index, num_outputs):
                word = _mix_int(word * _POSITION + part)
        may_stop = num_outputs >= sampling.min_tokens
        banned = set(eos_token_ids) | (set() if may_stop else set(sampling.stop_token_ids))
        told = None if line is None else line.token(num_outputs)
        wants_eos = self._ends(word) if line is None else told is None
        if wants_eos and eos_token_ids and may_stop and not sampling.ignore_eos:
            token_id = eos_token_ids[0]
        elif told is not None:
            token_id = told
        else:
            token_id = self._next_allowed(word % self.vocab_size, banned)
        if allowed is not None:
            ends = wants_eos or (line is None and _mix_int(word + 2) % 4 == 0)
            wanted = eos_token_ids[:1] if ends and may_stop and not sampling.ignore_eos else ()
            token_id = self._let_through(token_id, wanted, banned, allowed)
        return _with_logprobs(token_id, word, sampling.num_logprobs, self.vocab_size)

    def scores(self, contexts: Words, token_ids: Sequence[TokenId], first: int, num_best: int) -> PromptScores:
        """Of a prompt's tokens from position `first` on; `contexts`: the word before each of them."""
        best = (contexts % np.uint64(self.vocab_size)).astype(np.int64)
        peaks = -(1 + (contexts % np.uint64(1000)).astype(np.float64)) / 1000
        distances = (np.asarray(token_ids, dtype=np.int64) - best) % self.vocab_size
        ranks = np.arange(min(num_best, self.vocab_size))
        return PromptScores(
            first,
            len(ranks),
            (peaks - distances).astype("<f8").tobytes(),
            (distances + 1).astype("<i4").tobytes(),
            ((best[:, None] + ranks) % self.vocab_size).astype("<i4").tobytes(),
            (peaks[:, None] - ranks).astype("<f8").tobytes(),
        )

    def reference_scores(self, prompt: Sequence[TokenId], num_best: int) -> PromptScores:
        """What a correct server says of a whole prompt."""
        context = fingerprints(list(prompt), 0, 0)
        return self.scores(context_hashes(context, context ^ VALUE_MASK)[:-1], prompt[1:], 1, num_best)

    def reference_tokens(
        self,
        prompt: tuple[TokenId, ...] | list[TokenId],
        params: SamplingParams,
        num_tokens: int | None = None,
        *,
        eos_token_ids: tuple[TokenId, ...] = (),
        sample_index: int = 0,
        line: Line | None = None,
        allowed_after: Callable[[list[TokenId]], Allowed] | None = None,
    ) -> list[TokenId]:
        """What a correct server answers: up to `num_tokens` (default `max_tokens`), less if an end token comes.
        `allowed_after`: what a grammar lets through after an output.

        Computed without blocks, batches or chunks.
        """
        context = fingerprints(list(prompt), 0, 0)
        outputs: list[TokenId] = []
        is_endless = params.ignore_eos and allowed_after is None
        stops = set(params.stop_token_ids) | (set() if is_endless else set(eos_token_ids))
        while len(outputs) < (params.max_tokens if num_tokens is None else num_tokens):
            word = context_hash(context, context ^ VALUE_MASK)
            allowed = None if allowed_after is None else allowed_after(outputs)
            token = self.sample(word, params, eos_token_ids, sample_index, len(outputs), line, allowed).token_id
            outputs.append(token)
            if token in stops:
                break
            context = np.append(context, fingerprints([token], len(context), int(context[-1])))
        return outputs

    def _ends(self, word: int) -> bool:
        return self.eos_one_in > 0 and _mix_int(word + 1) % self.eos_one_in == 0

    def _let_through(
        self, token_id: TokenId, wanted: tuple[TokenId, ...], banned: set[TokenId], allowed: Allowed
    ) -> TokenId:
        """What is banned only if there is nothing else."""
        for each in wanted:
            if allowed(each):
                return each
        if token_id not in banned and allowed(token_id):
            return token_id
        held_back = {each for each in range(self.vocab_size) if not allowed(each)}
        everything = len(held_back | banned) == self.vocab_size
        return self._next_allowed(token_id, held_back if everything else held_back | banned)

    def _next_allowed(self, token_id: TokenId, banned: set[TokenId]) -> TokenId:
        for step in range(self.vocab_size):
            candidate = (token_id + step) % self.vocab_size
            if candidate not in banned:
                return candidate
        return token_id  # everything is banned: there is nothing better


def _with_logprobs(token_id: TokenId, word: int, num_logprobs: int | None, vocab_size: int) -> SampledToken:
    """Logprobs that are a function of the context: the sampled token is the best one, its successors follow."""
    if num_logprobs is None:
        return SampledToken(token_id)
    best = -(1 + word % 1000) / 1000
    ranks = range(min(num_logprobs, vocab_size))
    return SampledToken(token_id, best, tuple(((token_id + rank) % vocab_size, best - rank) for rank in ranks))
