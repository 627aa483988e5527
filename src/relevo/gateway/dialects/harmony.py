"""Harmony, as gpt-oss writes: messages with a header that says on which channel and for whom. Calls and reasoning both.

The recipient decides, in whichever place of the header it stands: a message to a tool is a call. Then the channel:
`analysis` is reasoning, all others are content, as is text between messages. Names end at a control token, messages
need no start and no end, and nothing that a model writes raises. Source: the format's published description.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from relevo.core.baton import SampledToken
from relevo.gateway.dialects.call_parts import CallParts
from relevo.gateway.dialects.json_values import ArgumentsText
from relevo.gateway.dialects.marks import Marks, after_blanks
from relevo.gateway.dialects.reasoning_tokens import ReasoningTokens
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
CONTROL = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
MAX_HEADER_CHARS = 512  # behind a control token; a longer one is text that lacks its <|message|>; arbitrary
RECIPIENT = re.compile(r"(?:^|\s)to=(\S*)")
NO_TOOLS = frozenset({"", "assistant", "all", "user"})  # recipients
_TO = r"\s*(?:t|to|to=\S{0,128}\s*\w{0,16})?"
BARE_HEADER = re.compile(rf"\s*(?:a|as|ass|assi|assis|assist|assista|assistan|assistant)?{_TO}")  # and its beginnings
HEADER = re.compile(rf"\s*[\w.\-]{{0,64}}{_TO}")  # behind <|start|>: of any role

Kind = Literal["content", "reasoning", "call"]


@dataclass(slots=True)
class Header:
    """Of a message, as far as it was read."""

    channel: str = ""
    recipient: str = ""
    rest: str = ""  # other words: a type of content, or the beginning of a message that lacks its mark

    @property
    def tool(self) -> str:
        """Empty: it is for none."""
        return "" if self.recipient in NO_TOOLS else self.recipient.removeprefix("functions.")

    def read(self, words: str, *, is_channel: bool) -> None:
        if (found := RECIPIENT.search(words)) is not None:
            self.recipient = found[1]
            words = words[: found.start()] + words[found.end() :]
        if is_channel:
            self.channel, *rest = words.split(None, 1) or [""]
            self.rest = "".join(rest)


class Harmony:
    """Implements gateway.text.output_parser.OutputParser."""

    def __init__(self, asked: ParserInput, *, tells_reasoning: bool = True, reads_calls: bool = True) -> None:
        """tells_reasoning: else it is content. reads_calls: else they are."""
        self._is_parallel = asked.is_parallel
        self._tells_reasoning, self._reads_calls = tells_reasoning, reads_calls and bool(asked.tools)
        self._marks = Marks(CONTROL)
        self._out = CallParts(asked)
        self._tokens = ReasoningTokens()
        self._text = ""
        self._header = Header()
        self._num_header_chars = 0  # of the header being read: its message's kind is not known yet
        self._is_channel = False  # the words that come name it
        self._is_behind_start = False
        self._has_told = False  # since the last control token
        self._kind: Kind = "content"
        self._arguments = ArgumentsText(self._marks)
        self._raw = ""  # of a message to a tool that is no call yet
        self._is_named = False  # the call came out
        self._step: Callable[[], bool] = self._between
        self._is_over = False
        self.is_complete = self.is_broken_off = False
        self._continue(asked.prompt_tail)

    @property
    def num_reasoning_tokens(self) -> int:
        return self._tokens.count

    @property
    def num_closed_calls(self) -> int:
        return self._out.num_closed_calls

    @property
    def is_in_call(self) -> bool:
        return self._out.is_in_call

    def feed(self, text: str, tokens: Sequence[SampledToken]) -> tuple[Part, ...]:
        self._tokens.fed(len(tokens), len(text))
        self._text += text
        self._read()
        return self._out.take()

    def flush(self, *, is_cut: bool) -> tuple[Part, ...]:
        self._is_over = True
        self._read()
        if self._step == self._call_body and not self.is_complete:
            self._end_call_body(is_cut=is_cut)
        self._take(len(self._text))
        self._out.end()
        self.is_broken_off = self._out.is_in_call
        return self._out.take()

    def _continue(self, prompt_tail: str) -> None:
        """Where the prompt's end leaves the first message: behind its start, or in its midst."""
        begun = prompt_tail.rfind(START)
        if begun < 0:
            return
        self._text = prompt_tail[begun:].rstrip()
        self._tokens.fed(0, len(self._text))
        self._read()
        self._out.take()

    def _read(self) -> None:
        while not self.is_complete and self._step():
            pass

    # ---- steps: each reads on and says whether the next may ----------------------------------------------------------

    def _between(self) -> bool:
        """Before a message's channel is known: a header, or free text, which is content."""
        place, mark = self._marks.find(self._text)
        words = self._text[: place if mark else self._marks.first_open(self._text)]
        is_header = (
            not self._has_told and (HEADER if self._is_behind_start else BARE_HEADER).fullmatch(words) is not None
        )
        if not mark and is_header and not self._is_over:
            return False
        if (
            is_header
            and (mark or self._is_behind_start)
            and (mark in (CHANNEL, MESSAGE, CONSTRAIN) or not words.strip())
        ):
            self._header.read(words, is_channel=False)
            self._keep(len(words))
        elif is_header and self._is_behind_start:
            self._keep(len(words))
        else:
            self._kind = "content"
            self._tell(self._take(len(words) if mark or not self._is_over else len(self._text)))
        return bool(mark) and self._control(mark)

    def _channel(self) -> bool:
        """Behind <|channel|> or <|constrain|>: words of the header."""
        place, mark = self._marks.find(self._text)
        num_known = place if mark else self._marks.first_open(self._text)
        if num_known > MAX_HEADER_CHARS or (self._is_over and not mark):
            words = self._keep(min(len(self._text), MAX_HEADER_CHARS))
            self._header.read(words, is_channel=self._is_channel)
            return self._begin_body(is_broken=True)
        if not mark:
            return False
        self._header.read(self._keep(place), is_channel=self._is_channel)
        return self._control(mark)

    def _body(self) -> bool:
        place, mark = self._marks.find(self._text)
        known = place if mark else len(self._text) if self._is_over else self._marks.first_open(self._text)
        self._tell(self._take(known))
        return bool(mark) and self._control(mark)

    def _call_body(self) -> bool:
        arguments = self._arguments
        place = after_blanks(self._text)
        if not arguments.is_begun and (place == len(self._text) or self._marks.begins_at(self._text, place)):
            return False
        if not arguments.is_begun and self._marks.at(self._text, place):
            arguments.close_empty()
        else:
            self._raw += self._take(arguments.feed(self._text, 0))
        if arguments.is_object:
            self._tell_arguments()
        if arguments.is_wrong or (arguments.is_broken and not self._is_named):
            return self._no_call()
        if arguments.is_closed or arguments.is_broken:
            if arguments.is_closed:
                self._out.close()
                self.is_complete = not self._is_parallel
            return self._go_between()
        return False

    # ---- what they do ------------------------------------------------------------------------------------------------

    def _control(self, mark: str) -> bool:
        """What a control token means, wherever it stands."""
        is_in_header = self._step != self._body
        if mark in (MESSAGE, CONSTRAIN) and not is_in_header:
            self._take(len(mark))  # astray
            return True
        if mark in (END, CALL, RETURN):
            if self._step == self._channel and self._header.rest:
                return self._begin_body(is_broken=True)
            self._decide_header(self._kind)
            self._take(len(mark))
            return self._go_between()
        if mark == START:
            self._decide_header("content")
            self._go_between(is_behind_start=True)
            self._keep(len(mark))
            return True
        if not is_in_header:
            self._header = Header()
        self._keep(len(mark))
        if mark == MESSAGE:
            return self._begin_body()
        self._is_channel = mark == CHANNEL
        self._has_told = False
        self._step = self._channel
        return True

    def _begin_body(self, *, is_broken: bool = False) -> bool:
        """is_broken: the header ended without <|message|>, and its last words may be the message's first."""
        header = self._header
        is_call = self._reads_calls and bool(header.tool) and not (is_broken and self._is_over)
        self._kind = (
            "call" if is_call else "reasoning" if header.channel == "analysis" and not header.tool else "content"
        )
        self._decide_header(self._kind)
        self._out.mark()
        if is_call:
            self._arguments, self._raw, self._is_named = ArgumentsText(self._marks), "", False
            self._step = self._call_body
            return True
        self._step = self._body
        if is_broken and header.channel in ("analysis", "commentary", "final"):
            self._tell(header.rest)
        return True

    def _go_between(self, *, is_behind_start: bool = False) -> bool:
        self._header, self._is_behind_start, self._has_told = Header(), is_behind_start, False
        self._kind = "content"
        self._step = self._between
        return True

    def _no_call(self) -> bool:
        """A message to a tool that has no object: its text is content."""
        self._kind, self._step = "content", self._body
        self._tell(self._raw)
        return True

    def _end_call_body(self, *, is_cut: bool) -> None:
        arguments = self._arguments
        if self._is_named:
            self._out.arguments(self._text)
        elif not is_cut and (self._raw + self._text).strip() in ("", "null"):
            arguments.close_empty()
            self._tell_arguments()
            self._out.close()
        else:
            self._kind = "content"
            self._tell(self._raw + self._text)

    def _tell_arguments(self) -> None:
        if not self._is_named:
            self._out.open(self._header.tool)
            self._is_named = True
        self._out.arguments(self._arguments.take())

    def _tell(self, text: str) -> None:
        if not text:
            return
        if self._kind == "reasoning" and self._tells_reasoning:
            self._out.reasoning(text)
        else:
            self._out.text(text)
        self._has_told = self._has_told or not text.isspace()

    def _take(self, num_chars: int) -> str:
        """What is decided now, as part of the message that is read."""
        text, self._text = self._text[:num_chars], self._text[num_chars:]
        self._tokens.decided(num_chars, is_reasoning=self._kind == "reasoning")
        return text

    def _keep(self, num_chars: int) -> str:
        """Of a header: it counts to what its message will be."""
        text, self._text = self._text[:num_chars], self._text[num_chars:]
        self._num_header_chars += num_chars
        return text

    def _decide_header(self, kind: Kind) -> None:
        self._tokens.decided(self._num_header_chars, is_reasoning=kind == "reasoning")
        self._num_header_chars = 0
