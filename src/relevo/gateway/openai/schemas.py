"""The request bodies that OpenAI clients send, with vLLM's extensions: names, types and ranges.

A member that is not listed is accepted and ignored, `null` means "not given" (see gateway.body). Does not know
defaults, the model or the tokenizer, nor how many of a thing are allowed (see `bounds`). Sources: OpenAI API reference;
vLLM's OpenAI-compatible server documentation.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from relevo.gateway.generation.spec import MAX_INT, Count, SamplingWish, TokenIdField

MAX_CHOICES = 128  # OpenAI's bound of n
MAX_LOGPROBS = 20  # OpenAI's bound of top_logprobs

StopString = Annotated[str, Meta(min_length=1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(SamplingWish, kw_only=True):
    """What /v1/chat/completions and /v1/completions have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    stop: StopString | list[StopString] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    echo: bool = False
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | bool | None = None  # false: as if not given
    user: str | None = None
    priority: Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)] = 0
    service_tier: str | None = None  # "batch" and "flex" only use room that no other request wants
    request_id: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+\Z")] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+\Z")] | None = None
    response_format: Any = None  # these say what the text has to be, see openai.output_formats
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    json_schema: Any = None
    use_beam_search: bool = False
    session_id: Any = None  # these four may name a session, see policy.routing.affinity
    prompt_cache_key: Any = None
    promptCacheKey: Any = None  # noqa: N815  # as some clients spell it
    metadata: Any = None


class ChatFields(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool | None = None  # default: the opposite of continue_final_message
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    chat_template: Any = None  # refused: a template is code
    reasoning_effort: str | None = None


class CompletionFields(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | TokenIdField | list[TokenIdField]]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_INT)] | None = None  # 0: nothing beside what is said of the prompt
    suffix: str | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    add_special_tokens: bool = True


class TokenizeFields(msgspec.Struct, kw_only=True):
    """POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    chat_template: Any = None  # refused: a template is code
    return_token_strs: bool = False


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenIdField]
