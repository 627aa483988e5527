"""What a client wants generated, in words of no API: made by an API's parser of requests, read by everything behind it.

None means "not said": then the model's own defaults apply. Messages and tools have the form that chat templates take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from relevo.core.ids import TokenId
from relevo.gateway.generation.prompt_scores import ScoreWriter

MAX_INT = 2**31 - 1

Count = Annotated[int, Meta(ge=1, le=MAX_INT)]
TokenIdField = Annotated[int, Meta(ge=0, le=MAX_INT)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which of the declared tools an answer may call, and whether it must."""

    mode: Literal["auto", "none", "required"] = "auto"  # required: at least one call, and no content
    names: tuple[str, ...] = ()  # only these may be called; empty: any that is declared
    is_parallel: bool = True  # False: the answer ends after its first call


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """What the content of an answer must be. Begins after the reasoning; calls of tools are not held by it."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    value: Any = None  # a schema, a regular expression, a list of texts, a grammar (Lark, or GBNF as vLLM takes it)
    is_strict: bool = True  # of a schema: a keyword that cannot be held is refused, and not ignored
    blanks: str | None = None  # of JSON, between its marks: a regular expression; None: a few, empty: none
    param: str = "response_format"  # the field of the request that says so, for errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, to be rendered by the model's template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()  # {"type": "function", "function": {name, description, parameters, strict}}
    tool_choice: ToolChoice = ToolChoice()
    add_generation_prompt: bool | None = None  # None: the opposite of `continue_final_message`
    continue_final_message: bool = False
    add_special_tokens: bool = False  # beside those that the template writes
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_tools(self) -> Sequence[Mapping[str, Any]]:
        return () if self.tool_choice.mode == "none" else self.tools

    @property
    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        """Of the declared ones, those that an answer may call."""
        names, shown = frozenset(self.tool_choice.names), self.shown_tools
        return [tool for tool in shown if tool["function"]["name"] in names] if names else shown

    @property
    def continues_text(self) -> bool:
        """Whether the output goes on in the middle of a text, and is not a message of its own."""
        return self.continue_final_message


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPrompt:
    """A text, or the tokens of one."""

    content: str | list[TokenId]
    add_special_tokens: bool = True  # to a text
    is_repeated: bool = False  # the answer shows the prompt's text first
    continues_text: bool = True


class SamplingWish(msgspec.Struct, kw_only=True):
    """How tokens are to be drawn, within what an engine takes. An API whose fields have these names inherits them."""

    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_INT)] = 0
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] = {}  # by token id, as JSON has it
    seed: int | None = None
    stop_token_ids: list[TokenIdField] = []
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One request: `n` choices for each of its prompts."""

    prompts: Sequence[ChatPrompt | PlainPrompt]
    sampling: SamplingWish
    n: int = 1
    default_max_tokens: int | None = None  # of the API; before the model's own
    num_prompt_logprobs: int | None = None  # the same of the prompts' own tokens
    score_writer: Callable[[Sequence[TokenId]], ScoreWriter] | None = None  # of each prompt, in order, if so
    is_prompt_only: bool = False  # nothing is generated; one token is drawn and thrown away
    num_logprobs: int | None = None  # None: none; 0: of the drawn token alone; k: and of the k best
    output_format: OutputFormat | None = None  # None: any text
    tells_tokens: bool = False  # the answer shows more of its tokens than their text
    stop_strings: Sequence[str] = ()
    include_stop_string: bool = False  # also: show the text of the token that ended a choice
    skip_special_tokens: bool = True
    is_streamed: bool = False
    priority: int = 0
    service_tier: str | None = None
    cache_salt: str | None = None
    session: Mapping[str, Any] = field(default_factory=dict)  # what may name one, see policy.routing.affinity
