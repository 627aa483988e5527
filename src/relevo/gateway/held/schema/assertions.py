"""The keywords that say something of one kind of value: numbers, strings, arrays, objects."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from relevo.gateway.held.formats import FORMATS, FREE_FORMATS, INTEGER_FORMATS, format_node
from relevo.gateway.held.numbers import MAX_LIMIT_DIGITS, Numbers
from relevo.gateway.held.patterns.nodes import Node
from relevo.gateway.held.patterns.reader import BadPattern, read_pattern
from relevo.gateway.held.patterns.whole import whole_pattern
from relevo.gateway.held.problems import Leniency, NotASchema
from relevo.gateway.held.schema.members import Keywords
from relevo.gateway.held.schema.shapes import Arrays, Layer, Objects, Strings, Sub, number_of

MAX_LENGTH = 1_000_000  # of a string: longer than any answer
MAX_PATTERNS = 4  # of the names of one object: their combinations are written out


def read_numbers(keywords: Keywords, leniency: Leniency, *, is_integer: bool) -> Numbers:
    found = Numbers(is_integer)
    for name, is_low in (("minimum", True), ("maximum", False)):
        exclusive = f"exclusive{name.capitalize()}"
        limit = _limit(keywords, name)
        flag = keywords.value(exclusive) if keywords.has(exclusive) else None
        if isinstance(flag, bool):
            found = found.both(_limited(limit, is_low, flag))
        else:
            found = found.both(_limited(limit, is_low, False)).both(_limited(_limit(keywords, exclusive), is_low, True))
    if keywords.has("multipleOf"):
        step = _limit(keywords, "multipleOf")
        if step is None or step <= 0:
            raise NotASchema(keywords.place, "multipleOf", "must be a number above 0")
        found = found.both(Numbers(step=Fraction(step)))
    if keywords.has("format") and (size := INTEGER_FORMATS.get(str(keywords.value("format")))) is not None:
        found = found.both(Numbers(True, Decimal(size[0]), Decimal(size[1])))
    return found


def _limit(keywords: Keywords, name: str) -> Decimal | None:
    if not keywords.has(name):
        return None
    limit = number_of(keywords.value(name))
    if limit is None:
        raise NotASchema(keywords.place, name, "must be a number")
    if limit and limit.adjusted() > MAX_LIMIT_DIGITS:
        raise NotASchema(keywords.place, name, f"has more than {MAX_LIMIT_DIGITS} digits")
    return limit


def _limited(limit: Decimal | None, is_low: bool, is_excluded: bool) -> Numbers:
    if limit is None:
        return Numbers()
    return Numbers(low=limit, excludes_low=is_excluded) if is_low else Numbers(high=limit, excludes_high=is_excluded)


def read_strings(keywords: Keywords, leniency: Leniency) -> Strings:
    nodes: list[Node] = []
    if keywords.has("pattern"):
        node = read_node(keywords.value("pattern"), keywords.place, "pattern", leniency)
        nodes += [] if node is None else [node]
    if keywords.has("format"):
        name = keywords.value("format")
        if not isinstance(name, str):
            raise NotASchema(keywords.place, "format", "must be a text")
        if name in FORMATS:
            nodes.append(format_node(name))
        elif name not in FREE_FORMATS and name not in INTEGER_FORMATS:
            leniency.not_held(keywords.place, "format", f"{name!r} is none of the formats that are held")
    high = keywords.count("maxLength")
    return Strings(keywords.count("minLength") or 0, None if high is None or high > MAX_LENGTH else high, tuple(nodes))


def read_node(pattern: Any, place: str, keyword: str, leniency: Leniency) -> Node | None:
    """None: it is not held, and noted."""
    if not isinstance(pattern, str):
        raise NotASchema(place, keyword, "must be a text")
    leniency.spend(len(pattern), place)
    try:
        return whole_pattern(read_pattern(pattern))
    except BadPattern as error:
        leniency.not_held(place, keyword, f"{error} (of {pattern[:80]!r})")
        return None


def read_arrays(keywords: Keywords, leniency: Leniency) -> Arrays:
    prefix: list[Sub] = []
    rest: Sub | None = None
    if keywords.has("items") and isinstance(keywords.value("items"), list):
        prefix = keywords.subs("items") if keywords.value("items") else []
        rest = keywords.sub("additionalItems")
    else:
        prefix = keywords.subs("prefixItems") if keywords.has("prefixItems") else []
        rest = keywords.sub("items")
    if rest is None and keywords.has("unevaluatedItems"):
        rest = _unevaluated(keywords, "unevaluatedItems", leniency)
    high = keywords.count("maxItems")
    low = keywords.count("minItems") or 0
    if keywords.has("uniqueItems") and keywords.value("uniqueItems") is not False and (high is None or high > 1):
        leniency.not_held(keywords.place, "uniqueItems", "a grammar does not remember what was written")
    return Arrays(
        tuple((sub,) if sub.schema is not True else () for sub in prefix),
        () if rest is None or rest.schema is True else (rest,),
        low,
        high,
    )


def read_objects(keywords: Keywords, leniency: Leniency) -> Objects:
    properties = keywords.named_subs("properties")
    patterns: list[tuple[Node, Sub]] = []
    rest = keywords.sub("additionalProperties")
    for pattern, sub in keywords.named_subs("patternProperties").items():
        node = read_node(pattern, keywords.place, "patternProperties", leniency)
        if node is None:
            rest = None if rest is None or rest.schema is False else rest  # names that it would have allowed
        elif len(patterns) == MAX_PATTERNS:
            leniency.not_held(keywords.place, "patternProperties", f"more than {MAX_PATTERNS} patterns")
        else:
            patterns.append((node, sub))
    if rest is None and keywords.has("unevaluatedProperties"):
        rest = _unevaluated(keywords, "unevaluatedProperties", leniency)
    names = keywords.sub("propertyNames")
    layers = (Layer(properties, tuple(patterns), rest),) if properties or patterns or rest is not None else ()
    return Objects(
        layers,
        tuple(dict.fromkeys(_required(keywords, leniency))),
        () if names is None or names.schema is True else (names,),
        keywords.count("minProperties") or 0,
        keywords.count("maxProperties"),
    )


def _required(keywords: Keywords, leniency: Leniency) -> list[str]:
    if keywords.has("required") and isinstance(keywords.value("required"), bool):
        leniency.not_held(keywords.place, "required", "must be a list of names; as in draft 3 it says nothing here")
        return []
    return keywords.texts("required")


def _unevaluated(keywords: Keywords, name: str, leniency: Leniency) -> Sub | None:
    if keywords.has_any("allOf", "anyOf", "oneOf", "$ref", "if", "not", "contains", "dependentSchemas"):
        leniency.not_held(keywords.place, name, "beside keywords that combine schemas it cannot be held")
        return None
    return keywords.sub(name)
