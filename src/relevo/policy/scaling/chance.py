"""How far a part of a few requests may be from what it would be of many. Pure."""

from __future__ import annotations


def variance_of_part(part: float, number: int) -> float:
    """Of a part of `number` requests; 0 of them: it is exact."""
    return part * (1.0 - part) / number if number else 0.0
