"""How durations, counts and bytes are written in a sentence."""

from __future__ import annotations


def seconds(value_s: float) -> str:
    if value_s == 0:
        return "0 s"
    if value_s < 0.0995:
        return f"{value_s * 1e3:.1f} ms" if value_s < 0.00995 else f"{value_s * 1e3:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 99.95 else f"{value_s:,.0f} s"


def count(number: float, noun: str) -> str:
    """`1 request`, `2,000 requests`."""
    return f"{number:,.0f} {noun}{'' if round(number) == 1 else 's'}"


def size(num_bytes: float) -> str:
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= divisor:
            return f"{num_bytes / divisor:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
