"""Does a value fit a schema? The few keywords of JSON schema that checks use, so that no library is needed.

Keywords that it does not know are a fault in a check, and raise KeyError. Source: JSON Schema, draft 2020-12.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
_ANNOTATIONS = frozenset(("$defs", "description", "title", "additionalProperties", "required"))
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
}


def fits(value: Any, schema: Schema, root: Schema | None = None) -> bool:
    """`$ref` is looked up in `root`, which is the schema itself unless said otherwise."""
    root = schema if root is None else root
    return all(
        _KEYWORDS[keyword](value, schema[keyword], schema, root) for keyword in schema if keyword not in _ANNOTATIONS
    )


def _ref(value: Any, name: str, schema: Schema, root: Schema) -> bool:
    return fits(value, root["$defs"][name.removeprefix("#/$defs/")], root)


def _properties(value: Any, properties: Schema, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    is_whole = all(name in value for name in schema.get("required", ()))
    is_closed = schema.get("additionalProperties") is not False or set(value) <= set(properties)
    return (
        is_whole
        and is_closed
        and all(fits(value[name], properties[name], root) for name in value if name in properties)
    )


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


_KEYWORDS: dict[str, Callable[[Any, Any, Schema, Schema], bool]] = {
    "$ref": _ref,
    "type": lambda value, type, schema, root: any(
        _TYPES[one](value) for one in ([type] if isinstance(type, str) else type)
    ),
    "properties": _properties,
    "enum": lambda value, among, schema, root: any(_same(value, one) for one in among),
    "anyOf": lambda value, branches, schema, root: any(fits(value, one, root) for one in branches),
    "items": lambda value, items, schema, root: (
        not isinstance(value, list) or all(fits(one, items, root) for one in value)
    ),
    "minItems": lambda value, least, schema, root: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda value, most, schema, root: not isinstance(value, list) or len(value) <= most,
    "uniqueItems": lambda value, wanted, schema, root: (
        not isinstance(value, list) or not wanted or len({repr(one) for one in value}) == len(value)
    ),
    "minimum": lambda value, least, schema, root: not isinstance(value, int) or value >= least,
    "maximum": lambda value, most, schema, root: not isinstance(value, int) or value <= most,
    "pattern": lambda value, pattern, schema, root: not isinstance(value, str) or bool(re.search(pattern, value)),
}
