"""Fixed and free texts of a grammar: marks that may be special tokens, texts up to a mark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from relevo.core.ids import TokenId
from relevo.gateway.held.lark import Items, Raw, Term, Times, term
from relevo.gateway.held.patterns.nodes import lexer_text

Specials = Mapping[str, TokenId]  # texts that are one special token each, which a grammar has to name

FREE = "(?s:.*)"
SOME = "(?s:.+)"


def marked(text: str, specials: Specials) -> Items:
    """`text`, with its special tokens as such."""
    return [
        Raw(f"<[{specials[piece]}]>") if piece in specials else term(lexer_text(piece))
        for piece in _pieces(text, specials)
    ]


def text_up_to(mark: str, specials: Specials, not_before: str = "") -> Items:
    """Any text, then `mark`, which the text does not hold; it does not begin with `not_before`."""
    return matched_up_to((FREE,), mark, specials, not_before)


def matched_up_to(
    matches: Sequence[str], mark: str, specials: Specials, not_before: str = "", *, may_be_empty: bool = False
) -> Items:
    """A text of all `matches`, then `mark`; ends with the first tag of the mark's, whatever blanks are around it."""
    pieces = _pieces(mark, specials)
    excludes: tuple[str, ...] = (lexer_text(not_before) + FREE,) if not_before and not_before not in specials else ()
    if pieces[0] in specials:
        text = Term(tuple(matches), excludes)
        return [Times([text], 0, 1) if may_be_empty or tuple(matches) == (FREE,) else text, *marked(mark, specials)]
    closing = lexer_text(pieces[0])
    ends_by_itself = len(pieces) == 1
    if tag := lexer_text(pieces[0].strip()):
        excludes += (f"{FREE}{tag}{FREE}{tag}{FREE}",)
    whole = Term(tuple(f"(?:{expression}){closing}" for expression in matches), excludes, is_lazy=ends_by_itself)
    return [whole, *marked(mark[len(pieces[0]) :], specials)]


def text_without(mark: str, specials: Specials, not_before: str = "") -> Items:
    """Any text without `mark`, to the end of the answer."""
    excludes: tuple[str, ...] = () if mark in specials else (FREE + lexer_text(mark) + FREE,)
    if not_before and not_before not in specials:
        excludes += (lexer_text(not_before) + FREE,)
    return [Times([Term((SOME,), excludes)], 0, 1)]


def _pieces(text: str, specials: Specials) -> list[str]:
    if not specials:
        return [text] if text else []
    longest_first = sorted(specials, key=len, reverse=True)
    found = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return [piece for piece in found if piece]
