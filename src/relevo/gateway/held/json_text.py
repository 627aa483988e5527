"""The texts of JSON as the grammar has them: blanks, strings, characters.

Blanks are bounded in every place: a model for which nothing else is allowed would otherwise write them to its limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.gateway.held.patterns.nodes import lexer_text

_HEX = "[0-9a-fA-F]"
_LOW_UNIT = rf"0{{3}}[1-9a-fA-F]|00[1-9a-fA-F]{_HEX}|0[1-9a-fA-F]{_HEX}{{2}}"
_ESCAPED_UNIT = rf"u(?:{_LOW_UNIT}|[1-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_ESCAPED_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# One character of a string that only its length limits, in any of its spellings; \u0000 and halves of pairs are none.
CHARACTER = rf'(?:[^"\\\x00-\x1f]|\\(?:["\\\x{{2f}}bfnrt]|{_ESCAPED_UNIT}|{_ESCAPED_PAIR}))'
# One character of a name in its only spelling: no name can be written in two ways.
NAME_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\(?:["\\bfnrt]|u00(?:0[1-7bBeEfF]|1[0-9a-fA-F])))'


@dataclass(frozen=True, slots=True)
class Blanks:
    """Regular expressions of what may stand between the marks of JSON; empty: nothing may."""

    after_opening: str  # of a list or an object, and before their closing
    after_comma: str
    after_colon: str
    around_others: str = ""  # before commas and colons


# As printers write JSON: on one line, or a line per member with up to 16 blanks before it.
DEFAULT_BLANKS = Blanks(r"(?: |\n {0,16})?", r"(?: |\n {0,16})?", " ?")
NO_BLANKS = Blanks("", "", "")


def blanks_like(pattern: str) -> Blanks:
    """The same in every place. `pattern`: as the lexer takes it."""
    return Blanks(*(f"(?:{pattern})",) * 4)


def comma(blanks: Blanks) -> str:
    return f"{blanks.around_others},{blanks.after_comma}"


def colon(blanks: Blanks) -> str:
    return f"{blanks.around_others}:{blanks.after_colon}"


def opening(mark: str, blanks: Blanks) -> str:
    return lexer_text(mark) + blanks.after_opening


def closing(mark: str, blanks: Blanks) -> str:
    return blanks.after_opening + lexer_text(mark)
