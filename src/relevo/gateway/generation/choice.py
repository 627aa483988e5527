"""One continuation as parts: detokenised, parsed, its content cut at stop strings, until it has ended.

Counting rule: output tokens are counted up to and including the one that completed a stop string; the end-of-sequence
token counts. Does not know requests or APIs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.core.baton import SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import TokenId
from relevo.core.request import FinishReason
from relevo.gateway.text.output_parser import OutputParser, PlainText
from relevo.gateway.text.parts import Delta, Part, TextPart, ToolCallPart
from relevo.gateway.text.served_models import Detokenizer
from relevo.gateway.text.stop_strings import StopStringMatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """What all choices of a request have in common."""

    include_stop_string: bool = False  # also: show the text of the token that ended the choice
    min_tokens: int = 0  # stop strings are not looked for in the text of earlier tokens
    stop_token_ids: tuple[TokenId, ...] = ()
    tells_tokens: bool = False
    is_prompt_only: bool = False  # the one token that is drawn is not shown, and not counted


class Choice:
    def __init__(
        self,
        index: int,
        options: ChoiceOptions,
        detokenizer: Detokenizer,
        parser: OutputParser,
        matcher: StopStringMatcher | None,
    ) -> None:
        self._index = index
        self._options = options
        self._detokenizer = detokenizer
        self._parser = parser
        self._matcher = matcher
        self._is_simple = matcher is None and not options.tells_tokens and isinstance(parser, PlainText)
        self._num_chars = 0  # decoded so far, held-back text included
        self.num_tokens = 0
        self._has_calls = False
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    @property
    def num_reasoning_tokens(self) -> int:
        """Of `num_tokens`."""
        return self._parser.num_reasoning_tokens

    def feed(self, output: TokenOutput) -> Delta:
        """Not to be called once the choice has ended."""
        if self._options.is_prompt_only:
            self.finish_reason = "length"
            return Delta(index=self._index, parts=(), tokens=(), finish_reason="length")
        if self._is_simple and output.finish_reason is None and len(output.tokens) == 1:  # nearly every token's way
            self.num_tokens += 1
            text = self._detokenizer.add(output.tokens[0].token_id)
            return Delta(index=self._index, parts=(TextPart(text),) if text else (), tokens=output.tokens)
        parts: list[Part] = []
        offsets: list[int] = []
        num_before = self.num_tokens
        for position, token in enumerate(output.tokens):
            if self.finish_reason is not None:
                break
            self.num_tokens += 1
            offsets.append(self._num_chars)
            ends_choice = output.finish_reason is FinishReason.STOP and position == len(output.tokens) - 1
            if not ends_choice or self._options.include_stop_string:
                parts += self._show(self._detokenizer.add(token.token_id), (token,))
        if output.finish_reason is not None and self.finish_reason is None:
            parts += self._finish(output)
        return Delta(
            index=self._index,
            parts=_joined(parts),
            tokens=output.tokens[: self.num_tokens - num_before],
            text_offsets=tuple(offsets) if self._options.tells_tokens else (),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _show(self, text: str, tokens: Sequence[SampledToken]) -> Sequence[Part]:
        self._num_chars += len(text)
        parts = self._cut(self._parser.feed(text, tokens))
        self._has_calls = self._has_calls or any(isinstance(part, ToolCallPart) for part in parts)
        if self.finish_reason is None and self._parser.is_complete:
            self.finish_reason = "tool_calls"
        return parts

    def _cut(self, parts: Sequence[Part]) -> Sequence[Part]:
        """At a stop string; also what may become one is held back."""
        matcher = self._matcher
        if matcher is None or self.num_tokens < self._options.min_tokens:
            return parts
        shown: list[Part] = []
        for part in parts:
            if not isinstance(part, TextPart):
                shown += [*_text(matcher.flush()), part]
                continue
            outcome = matcher.feed(part.text)
            shown += _text(outcome.text)
            if outcome.stopped:
                self.finish_reason, self.stop_reason = "stop", outcome.stop
                break
        return shown

    def _finish(self, output: TokenOutput) -> Sequence[Part]:
        parts = [*self._show(self._detokenizer.flush(), ())]
        if self.finish_reason is None:
            parts += self._cut(self._parser.flush(is_cut=output.finish_reason is FinishReason.LENGTH))
            self._has_calls = self._has_calls or any(isinstance(part, ToolCallPart) for part in parts)
        if self.finish_reason is not None:  # the held-back text completed a stop string
            return parts
        if self._matcher is not None:
            parts += _text(self._matcher.flush())
        if output.finish_reason is FinishReason.LENGTH:
            self.finish_reason = "length"
            return parts
        self.finish_reason = "tool_calls" if self._has_calls and not self._parser.is_broken_off else "stop"
        if output.tokens and output.tokens[-1].token_id in self._options.stop_token_ids:
            self.stop_reason = output.tokens[-1].token_id
        return parts


def _text(text: str) -> tuple[Part, ...]:
    return (TextPart(text),) if text else ()


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Texts that follow each other become one."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(last.text + part.text)
        else:
            joined.append(part)
    return tuple(joined)
