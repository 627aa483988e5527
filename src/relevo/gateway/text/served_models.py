"""The models behind one gateway, and everything that is one model's own.

Owns the rule by which a request's `model` finds its model. A `ServedModel` bundles what reads and writes the text of
one model and what generates its tokens; two of them share nothing. The Protocols name what the HTTP side uses of the
text parts; it does not know their classes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relevo.core.errors import InvalidRequest, ModelNotFound
from relevo.core.ids import TokenId
from relevo.gateway.dialects.formats import ReasoningFormat, ToolFormat
from relevo.gateway.text.output_parser import ParserFactory, plain_text
from relevo.orchestrator.insight import Insight
from relevo.orchestrator.ports import TokenGenerator


class TextTokenizer(Protocol):
    """Text to token ids and back. Called from worker threads too."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more bytes of a text; None: some may stand for any number."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]: ...

    def decode(self, token_ids: Sequence[TokenId]) -> str: ...

    def token_to_bytes(self, token_id: TokenId) -> bytes:
        """The bytes that one token stands for; not always whole UTF-8 characters."""
        ...


class PromptTemplate(Protocol):
    """Messages to prompt text. Raises InvalidRequest where the template refuses the messages."""

    @property
    def knows_tools(self) -> bool:
        """Whether tools that are given to `render` are in the prompt, in the place that the model was trained on."""
        ...

    @property
    def emulates_tools(self) -> bool:
        """Whether they are in the prompt as a text of ours, since the template has no place for them."""
        ...

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> str: ...


class Detokenizer(Protocol):
    """Token ids of one continuation to text, never half a character."""

    def add(self, token_id: TokenId) -> str: ...

    def flush(self) -> str: ...


class DetokenizerFactory(Protocol):
    """Makes one detokenizer per choice."""

    def __call__(
        self, *, skip_special_tokens: bool, continues_text: bool, kept_token_ids: frozenset[TokenId] = frozenset()
    ) -> Detokenizer:
        """continues_text: the tokens follow a completion's prompt, so the space before a first word is kept.
        kept_token_ids: special tokens that are text nevertheless."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model: its names, its text, its limits and its workers behind `generator`."""

    names: tuple[str, ...]  # that clients may use, at least one; the first is its own in metrics and /ready
    generator: TokenGenerator
    tokenizer: TextTokenizer
    chat_template: PromptTemplate | None  # None: the model has none, /v1/chat/completions answers 400
    make_detokenizer: DetokenizerFactory
    make_parser: ParserFactory = plain_text  # of what it writes in conversations
    markup_token_ids: frozenset[TokenId] = frozenset()  # special tokens that this parser reads as text
    tool_format: ToolFormat | None = None  # how it writes calls; None: it knows nothing of tools
    reasoning_format: ReasoningFormat | None = None  # None: it has no blocks of reasoning
    max_model_len: int  # tokens, prompt and output together
    max_running: int | None = None  # continuations that each of its workers decodes at once; None: not known
    vocab_size: int  # of the model: ids below it have an embedding, whatever the tokenizer knows besides
    eos_token_ids: tuple[TokenId, ...] = ()
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)  # where a request says nothing
    draw_seed: Callable[[], int] = lambda: secrets.randbits(64)  # for requests that bring none
    tokenizer_info: Mapping[str, Any] = field(default_factory=dict)  # what its files say, as /tokenizer_info tells it
    # Why the model's workers cannot hold an output to a grammar; empty: they can. Called from worker threads.
    grammar_refusal: Callable[[str], str] = lambda grammar: ""
    insight: Insight = field(default_factory=Insight)  # what is remembered for those who watch
    model_hash: str = ""  # goes into `system_fingerprint`

    @property
    def name(self) -> str:
        return self.names[0]


class ServedModels:
    """In the operator's order, found by any of their names."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = tuple(models)
        self._by_name = {name: model for model in models for name in model.names}
        assert len(self._by_name) == sum(len(model.names) for model in models), "a name belongs to one model"

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every model."""
        return tuple(self._by_name)

    def find(self, name: str) -> ServedModel:
        """Raises ModelNotFound, with the names that exist."""
        model = self._by_name.get(name)
        if model is None:
            raise ModelNotFound(
                f"The model `{name}` does not exist. Models of this server: {', '.join(self.names)}.", param="model"
            )
        return model

    def meant_by(self, name: str | None) -> tuple[ServedModel, str]:
        """The model that a request means, and the name it is answered under; a request need not name an only model.

        Raises ModelNotFound, InvalidRequest.
        """
        if name:
            return self.find(name), name
        if len(self._models) > 1:
            raise InvalidRequest(
                f"Missing required field 'model'. Models of this server: {', '.join(self.names)}.", param="model"
            )
        return self._models[0], self._models[0].name
