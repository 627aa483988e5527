"""Whether a text matches a pattern, in time that no pattern makes explode: by the sets of places where it may go on."""

from __future__ import annotations

from relevo.gateway.held.patterns.nodes import Anchor, Characters, Node, OneOf, Repeated, Row


def matches(node: Node, text: str) -> bool:
    """The whole text. `node` has no anchors (see `whole`)."""
    return len(text) in _ends(node, text, {0})


def _ends(node: Node, text: str, starts: set[int]) -> set[int]:
    if not starts:
        return starts
    match node:
        case Characters(ranges):
            return {
                start + 1
                for start in starts
                if start < len(text) and any(low <= ord(text[start]) <= high for low, high in ranges)
            }
        case Row(items):
            for item in items:
                starts = _ends(item, text, starts)
            return starts
        case OneOf(options):
            return set().union(*(_ends(option, text, starts) for option in options))
        case Repeated():
            return _repeated_ends(node, text, starts)
        case Anchor():
            raise AssertionError("anchors are resolved before a pattern is matched")


def _repeated_ends(node: Repeated, text: str, starts: set[int]) -> set[int]:
    here, count = starts, 0
    while here and count < node.low:
        later = _ends(node.item, text, here)
        count += 1
        if later == here:
            break
        here = later
    found, fresh = set(here), here
    while fresh and (node.high is None or count < node.high):
        fresh = _ends(node.item, text, fresh) - found
        found |= fresh
        count += 1
    return found
