"""How many entries the containers of an object hold, and of all objects below it: what grows with every request served
shows here, whatever the allocator does with memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

_CONTAINERS = (dict, list, set, deque)


def entry_counts(*roots: object, package: str = "relevo") -> Counter[str]:
    """By class and attribute, as `RequestQueues.requests`; containers in containers as `PrefixIndex._expected[]`.

    Follows the attributes of objects whose class is of the `package`, and whatever containers hold. Each object once.
    """
    counts: Counter[str] = Counter()
    seen: set[int] = set()
    open_ones: list[tuple[str, Any]] = [("", root) for root in roots]
    while open_ones:
        path, one = open_ones.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _CONTAINERS):
            counts[path] += len(one)
            open_ones += [(f"{path}[]", member) for member in _members(one)]
        elif isinstance(one, tuple):
            open_ones += [(path, member) for member in one]
        elif type(one).__module__.partition(".")[0] == package:
            open_ones += [(f"{type(one).__name__}.{name}", value) for name, value in _attributes(one)]
    return counts


def _members(container: Any) -> Iterator[Any]:
    if isinstance(container, Mapping):
        yield from container.keys()
        yield from container.values()
    else:
        yield from container


def _attributes(one: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(one, "__dict__", {}).items()
    for cls in type(one).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(one, name):
                yield name, getattr(one, name)
