"""Grammars that clients bring: Lark as llguidance reads it, or llama.cpp's GBNF, which is translated to it.

Owns their bounds, and what they may not do: schemas within a grammar would be read by other rules than all others here,
so they are refused.
"""

from __future__ import annotations

import re

from relevo.gateway.held import probe
from relevo.gateway.held.problems import NotHeld
from relevo.vocabulary.grammars import MAX_LINES

MAX_GRAMMAR_CHARS = 256 * 1024  # arbitrary
MAX_CONJUNCTIONS = 8  # measured: the compiler may take minutes over a conjunction of eleven counted expressions
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_IS_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*(?:\[[^\]]*\])?\s*:(?!\s*:=))")


def lark_of(grammar: str) -> str:
    """Raises NotHeld with what is wrong."""
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise NotHeld("", "grammar", f"a grammar may have {MAX_GRAMMAR_CHARS} characters")
    lark = grammar if _IS_LARK.search(grammar) else _from_gbnf(grammar)
    if re.search(r"%json\b", lark):
        raise NotHeld("", "grammar", "'%json' is not taken; send the schema as 'response_format'")
    if lark.count("\n") > MAX_LINES:
        raise NotHeld("", "grammar", f"a grammar may have {MAX_LINES:,} lines")
    if len(re.findall("[&~]", _LITERAL.sub("", lark))) > MAX_CONJUNCTIONS:
        raise NotHeld("", "grammar", f"a grammar may have {MAX_CONJUNCTIONS} of '&' and '~' in its terms")
    if fault := probe.fault_of(lark):
        raise NotHeld("", "grammar", fault)
    return lark


def _from_gbnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if "::=" not in grammar:
        raise NotHeld("", "grammar", "neither Lark (with a rule 'start:') nor GBNF (with a rule 'root ::=')")
    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise NotHeld("", "grammar", "nested too deeply") from None
    except Exception as error:  # the library raises nothing narrower
        raise NotHeld("", "grammar", f"GBNF: {error}") from None
