"""What a client said of sampling to resolved parameters: defaults and cross-field rules.

A request's sampling is resolved once, however many prompts it has. Pure but for the seed, which is drawn by the
caller. Does not know prompts or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.core.request import SamplingParams
from relevo.gateway.generation.spec import GenerationSpec, SamplingWish

NEUTRAL: Mapping[str, float] = {  # what each parameter is when neither client nor model says
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}


def resolve_sampling(
    spec: GenerationSpec, *, vocab_size: int, generation_defaults: Mapping[str, Any]
) -> SamplingParams:
    """What all prompts of a request share; each is completed by `for_prompt`. Raises InvalidRequest."""
    wish = spec.sampling
    values: dict[str, Any] = {name: _value(getattr(wish, name), generation_defaults, name) for name in NEUTRAL}
    top_k = int(values.pop("top_k"))
    return SamplingParams(
        max_tokens=1,
        seed=0,
        n=spec.n,
        top_k=min(top_k, vocab_size) if top_k > 0 else 0,
        logit_bias=_logit_bias(wish.logit_bias, vocab_size),
        num_logprobs=spec.num_logprobs,
        num_prompt_logprobs=spec.num_prompt_logprobs,
        stop_token_ids=tuple(dict.fromkeys(check_token_ids(wish.stop_token_ids, vocab_size, "stop_token_ids"))),
        min_tokens=wish.min_tokens,
        ignore_eos=wish.ignore_eos,
        **values,
    )


def for_prompt(
    shared: SamplingParams,
    wish: SamplingWish,
    *,
    num_room_tokens: int,
    default_max_tokens: int | None,
    drawn_seed: int,
) -> SamplingParams:
    """`num_room_tokens` is what the context length leaves for output, at least 1; `max_tokens` is cut to it.

    `drawn_seed` is used when the client gave none, so that a request can continue elsewhere with the same draws.
    Raises InvalidRequest.
    """
    max_tokens = min(wish.max_tokens or default_max_tokens or num_room_tokens, num_room_tokens)
    if wish.min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is {wish.min_tokens}, more than the {max_tokens} tokens that may be generated.",
            param="min_tokens",
        )
    return replace(shared, max_tokens=max_tokens, seed=drawn_seed if wish.seed is None else wish.seed % 2**64)


def check_token_ids(token_ids: Sequence[TokenId], vocab_size: int, param: str) -> Sequence[TokenId]:
    """`token_ids` unchanged. Raises InvalidRequest if one lies outside the vocabulary."""
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"'{param}' names token {token_id}, but the vocabulary has {vocab_size} tokens.", param=param
            )
    return token_ids


def _value(given: float | None, generation_defaults: Mapping[str, Any], name: str) -> float:
    if given is not None:
        return float(given)
    default = generation_defaults.get(name)
    return float(NEUTRAL[name] if default is None else default)


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 11 and int(key) < vocab_size):
            raise InvalidRequest(
                f"'logit_bias' has the key {key[:32]!r}, which is not a token id below {vocab_size}.",
                param="logit_bias",
            )
        bias[int(key)] = value
    return bias
