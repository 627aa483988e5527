"""What the fake model says where a script is given: rules, tried in order on the text of a prompt.

A line is a function of the prompt and of how much was said, so it goes on exactly after a handoff, a preemption, or on
another worker. Owns the rules and which one a prompt meets. It does not know the KV cache, and not what the text means:
a script writes the markup of whatever family it plays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId

_SHOWN_CHARS = 80  # of a prompt that no rule matches; arbitrary

# The id of each byte: the tokenizer's ids follow the letters of a byte-level alphabet, in which bytes that can be
# printed in Latin-1 stand for themselves and come first.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTES = bytes((*_PRINTABLE, *(byte for byte in range(256) if byte not in _PRINTABLE)))  # by id
_IDS = tuple(_BYTES.index(byte) for byte in range(256))  # by byte
END_TEXT = "<|end|>"  # of the id behind the bytes


class ScriptFault(ValueError):
    """What is wrong with a script, in words that follow the name of its file."""


class Count(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a prompt has to hold a text."""

    text: str
    at_least: int = 0
    at_most: int | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speaks where everything holds that it asks for; one that asks for nothing speaks always."""

    say: str | tuple[str, ...]  # several: one per continuation, and again from the first
    contains: str | tuple[str, ...] = ()
    lacks: str | tuple[str, ...] = ()
    regex: str = ""
    tail_chars: int | None = None  # the three above look at so many last characters only
    count: tuple[Count, ...] = ()  # of the whole prompt
    end: Literal["stop", "none"] = "stop"  # none: the text comes again and again
    pace_s: float = 0.0  # least duration of a step that says a token of it

    def matches(self, prompt: str) -> bool:
        seen = prompt if self.tail_chars is None else prompt[-self.tail_chars :]
        return (
            all(text in seen for text in _texts(self.contains))
            and not any(text in seen for text in _texts(self.lacks))
            and (not self.regex or re.search(self.regex, seen) is not None)
            and all(_is_within(prompt.count(each.text), each) for each in self.count)
        )

    def line(self, sample_index: int) -> Line:
        says = _texts(self.say)
        return Line(_ids_of(says[sample_index % len(says)]), self.end == "stop")


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]

    def rule_for(self, prompt_token_ids: Sequence[TokenId]) -> Rule:
        """Raises InvalidRequest where no rule matches."""
        prompt = text_of(prompt_token_ids)
        for rule in self.rule:
            if rule.matches(prompt):
                return rule
        raise InvalidRequest(
            f"No rule of the script matches this prompt, which ends with {prompt[-_SHOWN_CHARS:]!r}; add one to the "
            "file of --script, or a last one without conditions."
        )


@dataclass(frozen=True, slots=True)
class Line:
    """What one continuation says."""

    token_ids: tuple[TokenId, ...]
    ends: bool

    def token(self, place: int) -> TokenId | None:
        """None: everything is said."""
        if place < len(self.token_ids):
            return self.token_ids[place]
        return None if self.ends else self.token_ids[place % len(self.token_ids)]


def script_of(document: Any) -> Script:
    """Of a file's content. Raises ScriptFault."""
    try:
        script = msgspec.convert(document, Script, strict=False)
    except msgspec.ValidationError as error:
        raise ScriptFault(_in_words(str(error))) from error
    if not script.rule:
        raise ScriptFault("has no rule; write one below [[rule]], with what it is to say")
    for number, rule in enumerate(script.rule, start=1):
        if fault := _fault(rule):
            raise ScriptFault(f"rule {number}: {fault}")
    return script


def packed(script: Script) -> str:
    return msgspec.json.encode(script).decode()


def unpacked(text: str) -> Script:
    return msgspec.json.decode(text, type=Script)


def text_of(token_ids: Sequence[TokenId]) -> str:
    """Bytes that are no UTF-8 become replacement characters."""
    if max(token_ids, default=0) < 256:
        return bytes(token_ids).translate(_BYTES).decode(errors="replace")
    end = END_TEXT.encode()
    return b"".join([_BYTES[id_ : id_ + 1] or end for id_ in token_ids]).decode(errors="replace")


@lru_cache(maxsize=256)  # asked for every token of an answer
def _ids_of(text: str) -> tuple[TokenId, ...]:
    return tuple(_IDS[byte] for byte in text.encode())


def _texts(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def _is_within(number: int, count: Count) -> bool:
    return count.at_least <= number and (count.at_most is None or number <= count.at_most)


def _fault(rule: Rule) -> str:
    """What no type says of a rule; empty: nothing."""
    if not _texts(rule.say):
        return "say holds no text; write one, also an empty one"
    if rule.end == "none" and "" in _texts(rule.say):
        return 'say is empty and end is "none"; a text that comes again and again has at least one character'
    if rule.tail_chars is not None and rule.tail_chars < 1:
        return f"tail_chars is {rule.tail_chars}; use at least 1, or leave it out to look at the whole prompt"
    if not 0 <= rule.pace_s <= 60:
        return f"pace_s is {rule.pace_s:g}; use 0 to 60 seconds"
    for each in rule.count:
        if not each.text:
            return "count has an empty text; write what is to be counted"
        if each.at_most is not None and each.at_most < each.at_least:
            return f"count of {each.text!r} is at least {each.at_least} and at most {each.at_most}; no prompt has that"
    try:
        re.compile(rule.regex)
    except (re.error, OverflowError, RecursionError) as error:
        return f"regex {rule.regex!r} is none that Python's re reads: {error}"
    return ""


def _in_words(message: str) -> str:
    """`Expected `str`, got `int` - at `$.rule[0].say`` with the rule counted from 1, as people do."""
    what, _, path = message.partition(" - at `$")
    if found := re.match(r"\.rule\[(\d+)\]\.?(.*)`$", path):
        place = f"rule {int(found[1]) + 1}"
        return f"{place}: {found[2]}: {what}" if found[2] else f"{place}: {what}"
    return what
