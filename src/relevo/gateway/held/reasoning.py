"""The thoughts before an answer: they are free, up to the mark that ends them, and the answer proper begins behind it.

A template may have opened the block; else the model may open one, or not. An answer cannot end in its thoughts: where
no token is left for more, it is cut there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.gateway.dialects.formats import MessageMarks
from relevo.gateway.held.lark import Items, Ref, Rules, Times, term
from relevo.gateway.held.texts import Specials, marked, text_up_to

MAX_LINE_ENDS = 2  # behind the thoughts, as models write them


@dataclass(frozen=True, slots=True)
class Thoughts:
    start: str
    end: str
    is_open: bool  # the prompt has opened the block
    messages: MessageMarks | None = None


def after_thoughts(rules: Rules, thoughts: Thoughts | None, body: Sequence[Items], specials: Specials) -> Ref:
    """`body`, one of its alternatives, behind thoughts if there are any."""
    if thoughts is None:
        return rules.define(body, "b")
    behind: Items = [Times([term(rf"\x{{a}}{{1,{MAX_LINE_ENDS}}}")], 0, 1)]
    if thoughts.messages is not None:
        behind = marked(thoughts.messages.next, specials)
    block: Items = [*text_up_to(thoughts.end, specials), *behind]
    if not thoughts.is_open:
        block = [Times([*marked(thoughts.start, specials), *block], 0, 1)]
    return rules.define([[*block, rules.define(body, "b")]], "s")
