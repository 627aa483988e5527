"""The arguments of a call written as Python's or Gemma's literals, as JSON text while they come.

A stack of what is open, and one thing at a time: strings are told as they come, words when they end. A quote within a
string that nothing separates from what follows is data: models write them unescaped. Where the dialect is broken, what
can be told is told, and the rest is kept as stray text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.gateway.dialects.argument_types import json_text
from relevo.gateway.dialects.literals import Escapes, bare_begun, bare_json
from relevo.gateway.dialects.patterns import BLANKS, Atom, Pattern, Run

CLOSERS = {"(": ")", "[": "]", "{": "}"}
PREFIXES = {"r", "u", "b", "f", "br", "rb", "fr", "rf"}  # of strings in Python
MAX_DEPTH = 100  # of values within values; what is deeper is text: JSON's readers have limits too
KEYWORD = Run(r"(?:[^\W\d][\w.\-]{0,128}|)")

ARGUMENT_END = Pattern(  # of a string that is a named argument
    [BLANKS, ")"],
    [BLANKS, ",", BLANKS, ")"],
    [BLANKS, ",", BLANKS, KEYWORD, BLANKS, "="],
)
DELIMITERS: Sequence[Sequence[Atom]] = ([BLANKS, ","], [BLANKS, ")"], [BLANKS, "]"], [BLANKS, "}"])
ITEM_END = Pattern(*DELIMITERS)
KEY_END = Pattern([BLANKS, ":"], *DELIMITERS)
NAMED = Pattern([Run(r"(?P<key>[^\W\d][\w.\-]{0,128}|)"), BLANKS, "="])


@dataclass(frozen=True, slots=True)
class Dialect:
    closer: str  # of a call's arguments
    is_named_by_equals: bool  # arguments; else as the values of objects are, by a colon
    quotes: Sequence[str]  # the longest first
    verbatim: Sequence[str] = ()  # those of the quotes within which a backslash is one


PYTHON = Dialect(closer=")", is_named_by_equals=True, quotes=('"""', "'''", '"', "'"))


@dataclass(slots=True)
class Open:
    """Something begun: the arguments themselves, or a list, tuple, object or set in them."""

    closer: str
    is_tuple: bool = False
    has_keys: bool = False
    num_items: int = 0
    held: list[str] | None = None  # of a tuple that may be a grouped value, of a key: told when it is known


class LiteralArguments:
    """Of one call, from behind the bracket that opens them."""

    def __init__(self, dialect: Dialect, names: Sequence[str], tell: Callable[[str], None]) -> None:
        """names: of the parameters, in order, for values without a name. tell: takes what follows of the JSON text."""
        self._dialect, self._names, self._tell = dialect, names, tell
        self._stack = [Open(dialect.closer, has_keys=not dialect.is_named_by_equals)]
        self._step: Callable[[], bool] = self._item
        self._text = ""
        self._is_over = False
        self._is_named = True  # the argument
        self._num_read = self._num_open = 0  # of a word: characters, and brackets open within
        self._quote = ""
        self._escapes: Escapes | None = None
        self.is_closed = False
        self.stray = ""

    def feed(self, text: str) -> str:
        """What lies behind the arguments' end, if it is in there."""
        self._text += text
        while not self.is_closed and self._step():
            pass
        if not self.is_closed:
            return ""
        rest, self._text = self._text, ""
        return rest

    def flush(self, *, is_cut: bool) -> None:
        """Nothing follows. What lacks no more than its last bracket is closed, if the model ended here."""
        self._is_over = True
        self.feed("")
        if self.is_closed:
            return
        if not is_cut and len(self._stack) == 1 and self._step in (self._item, self._behind_value, self._bare):
            text = self._text
            self.feed(self._dialect.closer)
            if self.is_closed:
                return
            self._text = text
        if self._step == self._bare and not any(each.startswith(self._text) for each in self._dialect.quotes):
            self._put(bare_begun(self._text.strip()))
        elif self._step == self._item and self._text:
            self._put(("," if self._stack[-1].num_items else "{") + json_text(self._text)[:-1])
        for each in self._stack:
            if each.held is not None:
                self._tell(("[" if each.is_tuple else "," if each.num_items else "{") + "".join(each.held))

    # ---- steps: each reads on and says whether the next may ----------------------------------------------------------

    def _item(self) -> bool:
        """A name and a value, or the end of what is open."""
        self._text = self._text.lstrip()
        if not self._text:
            return False
        top, char = self._stack[-1], self._text[0]
        if char in ")]}":
            return self._close(char)
        if char in ",;":
            self._text = self._text[1:]
            return True
        if len(self._stack) == 1 and self._dialect.is_named_by_equals:
            return self._named(top)
        if top.has_keys:
            top.held = []
        else:
            self._put("" if top.held is not None else "," if top.num_items else "[")
            top.num_items += 1
        return self._go(self._value)

    def _named(self, top: Open) -> bool:
        found = NAMED.match(self._text, 0)
        if found is None and NAMED.may_match(self._text, 0):
            return False
        self._is_named = found is not None and bool(found["key"])
        if found is not None and self._is_named:
            name, self._text = found["key"], self._text[found.end() :]
        else:
            name = self._names[top.num_items] if top.num_items < len(self._names) else f"argument_{top.num_items + 1}"
        self._put(("," if top.num_items else "{") + json_text(name) + ":")
        top.num_items += 1
        return self._go(self._value)

    def _value(self) -> bool:
        text = self._text = self._text.lstrip()
        if not text:
            return False
        if text[0] in CLOSERS and len(self._stack) < MAX_DEPTH:
            self._text, opener = text[1:], text[0]
            self._stack.append(
                Open(CLOSERS[opener], opener == "(", has_keys=opener == "{", held=[] if opener == "(" else None)
            )
            return self._go(self._item)
        quotes = self._dialect.quotes
        if not self._is_over and any(len(text) < len(each) and each.startswith(text) for each in quotes):
            return False  # may be a longer one
        quote = next((each for each in quotes if text.startswith(each)), "")
        if not quote:
            self._num_read = self._num_open = 0
            return self._go(self._bare)
        return self._begin_string(quote, len(quote), has_escapes=quote not in self._dialect.verbatim)

    def _bare(self) -> bool:
        """A word, a number, or text that lacks its quotes: up to a comma or a closing bracket that is not its own."""
        text, is_key = self._text, self._is_in_key
        at, num_open = self._num_read, self._num_open
        while at < len(text):
            char = text[at]
            if num_open == 0 and (char in ",)]}" or (is_key and char == ":")):
                break
            if char in "\"'" and text[:at].lower() in PREFIXES and self._dialect is PYTHON:
                return self._begin_string(char, at + 1, has_escapes="r" not in text[:at].lower())
            num_open += (char in CLOSERS) - (char in ")]}")
            at += 1
        self._num_read, self._num_open = at, num_open
        if at == len(text):
            return False  # it may go on
        self._put(bare_json(text[:at].strip()))
        self._text = text[at:]
        return self._go(self._behind_value)

    def _begin_string(self, quote: str, num_chars: int, *, has_escapes: bool) -> bool:
        self._quote, self._text = quote, self._text[num_chars:]
        self._escapes = Escapes() if has_escapes else None
        self._put('"')
        return self._go(self._string)

    def _string(self) -> bool:
        text, at, begin = self._text, 0, 0
        while at < len(text):
            if text[at] == "\\" and self._escapes is not None:
                self._put_text(text[begin:at])
                read, length = self._escapes.read(text, at, is_over=self._is_over)
                if not length:
                    self._text = text[at:]
                    return False
                self._put(json_text(read)[1:-1])
                at = begin = at + length
            elif text[at] == self._quote[0] and (is_end := self._is_end(text, at)) is not False:
                self._put_text(text[begin:at])
                self._text = text[at:]
                return is_end is True and self._end_string()
            else:
                at += 1
        self._put_text(text[begin:])
        self._text = ""
        return False

    def _end_string(self) -> bool:
        left = self._escapes.before() if self._escapes is not None else ""
        self._put(left + '"')
        self._text = self._text.removeprefix(self._quote)
        return self._go(self._behind_value)

    def _is_end(self, text: str, at: int) -> bool | None:
        """Whether the string ends there. None: more of the text is needed."""
        quote = self._quote
        if not text.startswith(quote, at):  # half of one that was cut is no text either
            return None if quote.startswith(text[at:]) and (not self._is_over or len(text) > at + 1) else False
        if len(quote) > 1:
            return True
        ends = KEY_END if self._is_in_key else ITEM_END
        if len(self._stack) == 1 and self._dialect.is_named_by_equals and self._is_named:
            ends = ARGUMENT_END
        if ends.match(text, at + 1) is not None:
            return True
        if not ends.may_match(text, at + 1):
            return False
        return True if self._is_over else None

    def _behind_value(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        top, char = self._stack[-1], self._text[0]
        if self._is_in_key:
            return self._behind_key(top, char)
        if char in ")]}":
            return self._close(char)
        self._text = self._text[1:]
        if char not in ",;":
            self.stray += char
            return True
        if top.held is not None:  # a comma makes a tuple of what a bracket only groups
            held, top.held, top.is_tuple = "".join(top.held), None, False
            self._put("[" + held)
        return self._go(self._item)

    def _behind_key(self, top: Open, char: str) -> bool:
        """A key, if a colon follows: else a value of a set, or a name without a value."""
        key, top.held = "".join(top.held or ()), None
        is_set = char != ":" and top.num_items == 0 and len(self._stack) > 1
        if is_set:
            top.has_keys = False
            self._put("[" + key)
        else:
            self._put(("," if top.num_items else "{") + (key if key.startswith('"') else json_text(key)) + ":")
        top.num_items += 1
        if char == ":":
            self._text = self._text[1:]
            return self._go(self._value)
        self._put("" if is_set else "null")
        return True

    # ---- what they do ------------------------------------------------------------------------------------------------

    @property
    def _is_in_key(self) -> bool:
        top = self._stack[-1]
        return top.has_keys and top.held is not None

    def _close(self, char: str) -> bool:
        """What was left open within what this closes is closed with it. The call, if nothing in it is closed by it."""
        if any(each.closer == char for each in self._stack[1:]):
            while self._stack[-1].closer != char:
                self._close_top()
            self._close_top()
            self._text = self._text[1:]
            return self._go(self._behind_value)
        while len(self._stack) > 1:
            self._close_top()
        if char == self._dialect.closer:
            self._text = self._text[1:]
        self._put("}" if self._stack[0].num_items else "{}")
        self.is_closed = True
        return False

    def _close_top(self) -> None:
        top = self._stack.pop()
        if top.is_tuple and top.num_items:
            self._put("".join(top.held or ()))
        else:
            brackets = "{}" if top.has_keys else "[]"
            self._put(brackets[1] if top.num_items else brackets)

    def _put_text(self, text: str) -> None:
        if text:
            before = self._escapes.before() if self._escapes is not None else ""
            self._put(json_text(before + text)[1:-1])

    def _put(self, text: str) -> None:
        held = next((each.held for each in reversed(self._stack) if each.held is not None), None)
        if held is not None:
            held.append(text)
        elif text:
            self._tell(text)

    def _go(self, step: Callable[[], bool]) -> bool:
        self._step = step
        return True
