"""From a pattern that is searched for to one that the whole text matches; and how much work a pattern makes.

`^` and `$` are held where nothing can stand before, or after, them: at the edges of the pattern and of its
alternatives. Elsewhere they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from relevo.gateway.held.patterns.nodes import ANY, Anchor, Characters, Node, OneOf, Repeated, Row, can_match
from relevo.gateway.held.patterns.reader import BadPattern

MAX_COST = 20_000  # measured: at ten times as much the lexer gives up in the middle of an answer
MAX_ALTERNATIVES = 1_000  # arbitrary
ANYTHING = Repeated(ANY, 0, None)


def whole_pattern(node: Node) -> Node:
    """Raises BadPattern for anchors inside, and for patterns that are too much work."""
    options: list[Node] = []
    for line in _lines(node):
        is_left, is_right, items = False, False, list(line)
        while items and items[0] == Anchor(True):
            is_left = bool(items.pop(0))
        while items and items[-1] == Anchor(False):
            is_right = bool(items.pop())
        if any(_has_anchor(item) for item in items):
            raise BadPattern("an anchor ('^' or '$') inside the pattern cannot be held")
        middle = Row(tuple(items))
        if not can_match(middle):
            continue
        options.append(Row((*(() if is_left else (ANYTHING,)), middle, *(() if is_right else (ANYTHING,)))))
    if not options:
        raise BadPattern("no text matches it")
    found = options[0] if len(options) == 1 else OneOf(tuple(options))
    if cost(found) > MAX_COST:
        raise BadPattern("its counts multiply to too much work")
    return found


def _lines(node: Node) -> Iterator[tuple[Node, ...]]:
    """The alternatives, with those at their edges that have anchors written out."""
    num_lines = 0
    waiting: list[tuple[Node, ...]] = [(node,)]
    while waiting:
        items = waiting.pop()
        for place in (0, -1) if items else ():
            edge = items[place]
            if isinstance(edge, Row) and len(items) >= 1 and _has_anchor(edge):
                waiting.append(_replaced(items, place, edge.items))
                break
            if isinstance(edge, OneOf) and (_has_anchor(edge) or len(items) == 1):
                waiting += [_replaced(items, place, (option,)) for option in reversed(edge.options)]
                break
        else:
            yield items
        num_lines += 1
        if num_lines + len(waiting) > MAX_ALTERNATIVES:
            raise BadPattern(f"it has more than {MAX_ALTERNATIVES} alternatives")


def _replaced(items: tuple[Node, ...], place: int, new: tuple[Node, ...]) -> tuple[Node, ...]:
    return (*new, *items[1:]) if place == 0 else (*items[:-1], *new)


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Row(items) | OneOf(items):
            return any(_has_anchor(item) for item in items)
        case Repeated(item):
            return _has_anchor(item)
    return False


def cost(node: Node) -> int:
    """About how many states: counts multiply where they are nested, and of single characters they are cheap."""
    match node:
        case Row(items) | OneOf(items):
            return 1 + sum(cost(item) for item in items)
        case Repeated(Characters(), low, high):
            return 1 + int(math.log2(1 + max(low, high or 0)))
        case Repeated(item, low, high):
            return cost(item) * max(1, low, high or 0)
    return 1
