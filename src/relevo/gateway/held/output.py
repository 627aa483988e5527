"""The one grammar of an answer: thoughts, then content of a form, or calls, or text with calls in it.

Made from what is wanted alone, so equal wishes give equal grammars, and the last ones are kept. Does not know requests,
tokenizers or engines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

import msgspec

from relevo.core.errors import InvalidRequest
from relevo.gateway.dialects.formats import CallShape, MessageMarks
from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.held import client_grammars, probe
from relevo.gateway.held.calls import MAX_CALLS, CallRules, Tool, UnheldTool
from relevo.gateway.held.json_text import DEFAULT_BLANKS, NO_BLANKS, Blanks, blanks_like
from relevo.gateway.held.lark import Items, Raw, Ref, Rules, Term, Times, term
from relevo.gateway.held.patterns.nodes import lexer_text, written
from relevo.gateway.held.patterns.reader import BadPattern, read_pattern
from relevo.gateway.held.patterns.whole import whole_pattern
from relevo.gateway.held.problems import Leniency, NotASchema, NotHeld, told
from relevo.gateway.held.reasoning import Thoughts, after_thoughts
from relevo.gateway.held.schema.grammar import SchemaGrammar
from relevo.gateway.held.texts import Specials, marked, text_up_to, text_without
from relevo.vocabulary.grammars import MAX_GRAMMAR_BYTES

MAX_KEPT = 256  # arbitrary
MAX_KEPT_CHARS = 32 * 2**20  # arbitrary
MAX_CHOICES = 50_000  # arbitrary
_CONTENT = "content"  # the name of a client's own grammar within ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Of one answer. Which of the calls and the content may come, `calls` says."""

    output_format: OutputFormat | None = None  # of the content; None: any text
    calls: Literal["none", "some", "only"] = "none"  # some: or content
    tools: Sequence[Tool] = ()  # that may be called
    shape: CallShape | None = None  # of calls, unless there are none
    is_parallel: bool = True
    thoughts: Thoughts | None = None
    specials: Specials = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    grammar: str  # as llguidance serialises it
    notes: tuple[str, ...]  # what of the wishes it does not hold


class TooLarge(InvalidRequest):
    """The whole grammar, however its parts are written."""


def held(wanted: Wanted) -> Held:
    """Whether the model's vocabulary takes it, `fitting` asks. Raises InvalidRequest, of which TooLarge is one."""
    return _KEPT.of(wanted)


def _made(wanted: Wanted) -> Held:
    rules, notes = Rules(probe.is_empty), list[str]()
    alternatives: list[Items] = []
    user_grammar = None
    if wanted.output_format is not None and wanted.calls != "only":
        if wanted.output_format.kind == "grammar":
            user_grammar = _client_grammar(wanted.output_format)
            alternatives.append([*_before_content(wanted), Raw(f"@{_CONTENT}")])
        else:
            alternatives.append([*_before_content(wanted), _content(rules, wanted.output_format, notes)])
    if wanted.calls != "none":
        alternatives += _calls(rules, wanted, notes)
    start = after_thoughts(rules, wanted.thoughts, alternatives, wanted.specials)
    lark = rules.text(start.rule)
    grammars = [{"lark_grammar": lark}]
    if user_grammar is not None:
        grammars.append({"name": _CONTENT, "lark_grammar": user_grammar})
    grammar = json.dumps({"grammars": grammars})
    if len(grammar) > MAX_GRAMMAR_BYTES:
        raise TooLarge(
            f"The grammar has {len(grammar):,} bytes and may have {MAX_GRAMMAR_BYTES:,}.", param=_param(wanted)
        )
    return Held(grammar, tuple(dict.fromkeys(notes)))


def _before_content(wanted: Wanted) -> Items:
    messages = None if wanted.thoughts is None else wanted.thoughts.messages
    return [] if messages is None else marked(messages.content, wanted.specials)


def _param(wanted: Wanted) -> str:
    return wanted.output_format.param if wanted.output_format is not None and wanted.calls != "only" else "tools"


def _calls(rules: Rules, wanted: Wanted, notes: list[str]) -> list[Items]:
    assert wanted.shape is not None
    try:
        calls = CallRules(rules, wanted.shape, wanted.tools, wanted.specials, DEFAULT_BLANKS, notes)
    except UnheldTool as error:
        raise InvalidRequest(f"'tools' is strict, and {error}.", param="tools") from None
    if wanted.calls == "only" or wanted.output_format is not None:
        return [calls.held(is_parallel=wanted.is_parallel)]
    if wanted.thoughts is not None and wanted.thoughts.messages is not None:
        return _messages(wanted, wanted.thoughts.messages, calls)
    mark, opens = calls.trigger, wanted.thoughts.start if wanted.thoughts and not wanted.thoughts.is_open else ""
    is_several = wanted.is_parallel and calls.is_framed
    first = [*text_up_to(mark, wanted.specials, opens), *calls.held(is_parallel=is_several, is_triggered=True)]
    if not wanted.is_parallel:
        return [text_without(mark, wanted.specials, opens), first]
    later = [*text_up_to(mark, wanted.specials), *calls.held(is_parallel=False, is_triggered=True)]
    num_later = 0 if calls.is_framed else MAX_CALLS - 1
    return [
        text_without(mark, wanted.specials, opens),
        [*first, Times(later, 0, num_later), *text_without(mark, wanted.specials)],
    ]


def _messages(wanted: Wanted, marks: MessageMarks, calls: CallRules) -> list[Items]:
    """The content, or calls, perhaps with a text before them: each in a message of its own."""
    specials = wanted.specials
    preamble = [*marked(marks.preamble, specials), *text_up_to(marks.end, specials), *marked(marks.next, specials)]
    return [
        [*marked(marks.content, specials), *text_without(calls.trigger, specials)],
        [Times(preamble, 0, 1), *calls.held(is_parallel=wanted.is_parallel)],
    ]


def _content(rules: Rules, wish: OutputFormat, notes: list[str]) -> Ref:
    try:
        match wish.kind:
            case "json_object":
                return SchemaGrammar(rules, {"type": "object"}, Leniency(True), _blanks(wish)).whole()
            case "json_schema":
                return _schema(rules, wish, notes)
            case "regex":
                return rules.define([[term(_pattern(wish.value))]], "x")
            case "choice":
                return rules.define([[_choice(wish.value)]], "x")
    except NotHeld as problem:
        raise _refusal(wish, problem) from None
    raise AssertionError(f"no content is of the kind {wish.kind}")


def _schema(rules: Rules, wish: OutputFormat, notes: list[str]) -> Ref:
    leniency = Leniency(wish.is_strict)
    try:
        found = SchemaGrammar(rules, wish.value, leniency, _blanks(wish)).whole()
    except NotASchema:
        raise
    except NotHeld as problem:
        if wish.is_strict:
            raise
        notes.append(f"'{wish.param}' is held as any JSON: {problem}")
        return SchemaGrammar(rules, True, Leniency(True), _blanks(wish)).whole()
    notes.extend(f"'{wish.param}': {note} (not held)" for note in told(leniency.notes))
    return found


def _blanks(wish: OutputFormat) -> Blanks:
    if wish.blanks is None:
        return DEFAULT_BLANKS
    return NO_BLANKS if wish.blanks == "" else blanks_like(_pattern(wish.blanks))


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise NotHeld("", "pattern", "must be a text that is not empty")
    try:
        return written(whole_pattern(read_pattern(f"^(?:{pattern})$")), in_json=False)
    except BadPattern as error:
        raise NotHeld("", "pattern", f"{error} (of {pattern[:80]!r})") from None


def _choice(texts: Any) -> Term:
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise NotHeld("", "choice", "must be a list of texts, none of them empty")
    if len(texts) > MAX_CHOICES:
        raise NotHeld("", "choice", f"may have {MAX_CHOICES} texts")
    return term("|".join(map(lexer_text, dict.fromkeys(texts))))


def _client_grammar(wish: OutputFormat) -> str:
    try:
        if not isinstance(wish.value, str):
            raise NotHeld("", "grammar", "must be a text")
        return client_grammars.lark_of(wish.value)
    except NotHeld as problem:
        raise _refusal(wish, problem) from None


def _refusal(wish: OutputFormat, problem: NotHeld) -> InvalidRequest:
    note = problem.note
    if wish.kind != "json_schema":
        return InvalidRequest(f"'{wish.param}' cannot be held: {note.reason}.", param=wish.param)
    advice = "" if isinstance(problem, NotASchema) else "; leave it out, or send 'strict': false to have it ignored"
    return InvalidRequest(f"The schema of '{wish.param}' cannot be held: {note}{advice}.", param=wish.param)


class _KeptGrammars:
    """The last ones, by all that they were made from. Any thread."""

    def __init__(self) -> None:
        self._found: dict[bytes, Held] = {}
        self._num_chars = 0
        self._lock = Lock()

    def of(self, wanted: Wanted) -> Held:
        try:
            key = hashlib.sha256(msgspec.json.encode(wanted)).digest()
        except RecursionError:  # a schema nested so deeply is refused, or let go, with its place
            return _made(wanted)
        with self._lock:
            found = self._found.pop(key, None)
            if found is not None:
                self._found[key] = found  # the last again
                return found
        made = _made(wanted)
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._num_chars += len(made.grammar)
            while len(self._found) > MAX_KEPT or (self._num_chars > MAX_KEPT_CHARS and len(self._found) > 1):
                self._num_chars -= len(self._found.pop(next(iter(self._found))).grammar)
        return made


_KEPT = _KeptGrammars()
