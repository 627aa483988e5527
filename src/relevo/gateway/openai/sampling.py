"""Request fields to resolved sampling parameters: defaults and cross-field rules.

A request's sampling is resolved once, however many prompts it has. Pure but for the seed, which is drawn by the
caller. Does not know prompts or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.core.request import SamplingParams
from relevo.gateway.openai.bounds import check_bounds
from relevo.gateway.openai.schemas import ChatFields, GenerationFields

NEUTRAL: Mapping[str, float] = {  # what each parameter is when nobody sets it
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}


def resolve_sampling(
    fields: GenerationFields,
    *,
    num_logprobs: int | None,
    vocab_size: int,
    generation_defaults: Mapping[str, Any],
) -> SamplingParams:
    """What all prompts of a request share; each is completed by `for_prompt`. Raises InvalidRequest."""
    check_bounds(fields)
    top_k = int(_value(fields.top_k, generation_defaults, "top_k"))
    return SamplingParams(
        max_tokens=1,
        seed=0,
        n=fields.n,
        temperature=_value(fields.temperature, generation_defaults, "temperature"),
        top_k=min(top_k, vocab_size) if top_k > 0 else 0,
        top_p=_value(fields.top_p, generation_defaults, "top_p"),
        min_p=_value(fields.min_p, generation_defaults, "min_p"),
        frequency_penalty=_value(fields.frequency_penalty, generation_defaults, "frequency_penalty"),
        presence_penalty=_value(fields.presence_penalty, generation_defaults, "presence_penalty"),
        repetition_penalty=_value(fields.repetition_penalty, generation_defaults, "repetition_penalty"),
        logit_bias=_logit_bias(fields.logit_bias, vocab_size),
        num_logprobs=num_logprobs,
        stop_token_ids=tuple(dict.fromkeys(check_token_ids(fields.stop_token_ids, vocab_size, "stop_token_ids"))),
        min_tokens=fields.min_tokens,
        ignore_eos=fields.ignore_eos,
    )


def for_prompt(
    shared: SamplingParams,
    fields: GenerationFields,
    *,
    num_room_tokens: int,
    default_max_tokens: int | None,
    drawn_seed: int,
) -> SamplingParams:
    """`num_room_tokens` is what the context length leaves for output, at least 1; `max_tokens` is cut to it.

    `drawn_seed` is used when the client gave none, so that a request can continue elsewhere with the same draws.
    Raises InvalidRequest.
    """
    max_tokens = min(_max_tokens(fields) or default_max_tokens or num_room_tokens, num_room_tokens)
    if fields.min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is {fields.min_tokens}, more than the {max_tokens} tokens that may be generated.",
            param="min_tokens",
        )
    return replace(shared, max_tokens=max_tokens, seed=drawn_seed if fields.seed is None else fields.seed % 2**64)


def check_token_ids(token_ids: list[TokenId], vocab_size: int, param: str) -> list[TokenId]:
    """`token_ids` unchanged. Raises InvalidRequest if one lies outside the vocabulary."""
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"'{param}' names token {token_id}, but the vocabulary has {vocab_size} tokens.", param=param
            )
    return token_ids


def _max_tokens(fields: GenerationFields) -> int | None:
    if isinstance(fields, ChatFields) and fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    return fields.max_tokens


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
