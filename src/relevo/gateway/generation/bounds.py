"""How much of one thing a request may hold: bounds that no real client meets, and the sentence of each.

They keep what a request costs others, in a step of the engine and on the event loop, independent of what it asks for.
Values and types are the schemas' of each API. The numbers of token ids are those of vLLM's sampler.
"""

from __future__ import annotations

from relevo.core.errors import InvalidRequest
from relevo.gateway.generation.spec import GenerationSpec

MAX_LOGIT_BIAS = 1024  # token ids
MAX_STOP_TOKEN_IDS = 128
MAX_STOP_STRINGS = 64  # arbitrary; OpenAI allows 4
MAX_STOP_CHARS = 4096  # arbitrary; of all stop strings together
MAX_PROMPTS = 256  # arbitrary; in one completion request
MAX_CHOICES_OF_ALL_PROMPTS = 256  # arbitrary; n of OpenAI's bound is 128

MAX_PROMPT_SCORES = 2_000_000  # arbitrary; log probabilities of prompts in one request, some 60 bytes each in JSON


def check_bounds(spec: GenerationSpec) -> None:
    """Raises InvalidRequest with the value and the bound."""
    _at_most(len(spec.sampling.logit_bias), MAX_LOGIT_BIAS, "logit_bias", "token ids")
    _at_most(len(spec.sampling.stop_token_ids), MAX_STOP_TOKEN_IDS, "stop_token_ids", "token ids")
    _at_most(len(spec.stop_strings), MAX_STOP_STRINGS, "stop", "stop strings")
    _at_most(sum(map(len, spec.stop_strings)), MAX_STOP_CHARS, "stop", "characters in all")
    num_prompts = len(spec.prompts)
    _at_most(num_prompts, MAX_PROMPTS, "prompt", "prompts")
    if num_prompts * spec.n > MAX_CHOICES_OF_ALL_PROMPTS:
        raise InvalidRequest(
            f"{num_prompts} prompts with 'n' {spec.n} are {num_prompts * spec.n} choices; at most "
            f"{MAX_CHOICES_OF_ALL_PROMPTS} are allowed in one request; send several.",
            param="n",
        )


def check_prompt_scores(spec: GenerationSpec, num_prompt_tokens: int) -> None:
    """`num_prompt_tokens`: of all prompts. Raises InvalidRequest."""
    if spec.num_prompt_logprobs is None:
        return
    num_scores = num_prompt_tokens * (1 + spec.num_prompt_logprobs) * spec.n
    if num_scores > MAX_PROMPT_SCORES:
        raise InvalidRequest(
            f"The log probabilities of {num_prompt_tokens} prompt tokens with {spec.num_prompt_logprobs} alternatives "
            f"for {spec.n} choices are {num_scores} numbers; at most {MAX_PROMPT_SCORES} are told in one answer: ask "
            "for fewer alternatives, or send the prompts in several requests.",
            param="prompt_logprobs",
        )


def _at_most(count: int, most: int, param: str, what: str) -> None:
    if count > most:
        raise InvalidRequest(f"'{param}' has {count} {what}; at most {most} are allowed.", param=param)
