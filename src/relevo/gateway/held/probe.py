"""Asks the library about grammars before any model does: whether a term has a text, whether a grammar begins.

The vocabulary here is the 256 bytes, so an answer costs no more than the grammar itself does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import llguidance

from relevo.gateway.held.lark import Term
from relevo.vocabulary.deep_stack import on_deep_stack
from relevo.vocabulary.grammars import MAX_SYMBOLS

_EOS = 256


class _Bytes:
    """One token per byte."""

    eos_token_id = _EOS
    bos_token_id = None
    tokens = (*(bytes((byte,)) for byte in range(256)), b"<end>")
    special_token_ids = (_EOS,)

    def __call__(self, text: bytes) -> Sequence[int]:
        return list(text)


@cache
def byte_tokenizer() -> Any:
    wrapped = llguidance.TokenizerWrapper(_Bytes())
    return llguidance.LLTokenizer(wrapped, n_vocab=257, slices=[])


@lru_cache(maxsize=4096)
def is_empty(term: Term) -> bool:
    """Whether no text is of a term; only of several expressions there may be none."""
    if len(term.matches) == 1 and not term.excludes:
        return False
    parts = [f"/{part}/" for part in term.matches] + [f"~/{part}/" for part in term.excludes]
    matcher = _matcher(f"start: T\nT: {' & '.join(parts)}\n")
    matcher.compute_bitmask()
    return bool(matcher.is_stopped()) and not matcher.is_accepting()


def fault_of(lark: str) -> str:
    """What the library says of a grammar that it cannot hold a model to; empty: it can.

    Special tokens of a model's are not known here: `lark` is without them.
    """
    return on_deep_stack(lambda: _fault_of(lark))


def _fault_of(lark: str) -> str:
    matcher = _matcher(lark)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return ""
    fault = _first_line(matcher.get_error())
    return "no text is of it" if fault.startswith("NoExtension") else fault


def _matcher(lark: str) -> Any:
    limits = llguidance.LLParserLimits(max_grammar_size=MAX_SYMBOLS, verbose_errors=False)
    grammar = llguidance.LLMatcher.grammar_from_lark(lark)
    return llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=limits)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown")[:300]
