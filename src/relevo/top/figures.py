"""Numbers in few columns of a terminal. What is not known is a dash."""

from __future__ import annotations

UNKNOWN = "-"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_WHOLE_MS = 10  # from here on milliseconds have no decimals
_LONG_S = 100


def milliseconds(value_s: float | None) -> str:
    if value_s is None:
        return UNKNOWN
    value_ms = value_s * 1e3
    return f"{value_ms:.0f}" if value_ms >= _WHOLE_MS else f"{value_ms:.1f}"


def seconds(value_s: float | None) -> str:
    """0.25, 12.3, 4m05, 3h12."""
    if value_s is None:
        return UNKNOWN
    if value_s < _LONG_S:
        return f"{value_s:.2f}" if value_s < _WHOLE_MS else f"{value_s:.1f}"
    return duration(value_s)


def duration(value_s: float) -> str:
    """One or two units: 12s, 4m05, 3h12, 5d03."""
    whole = max(0, int(value_s))
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02}"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02}"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S:02}"


def count(number: float | None) -> str:
    """At most five characters: 950, 9500, 12.3k, 4.5M."""
    if number is None:
        return UNKNOWN
    if number < 9.95:  # a rate below ten has a decimal, if it is one
        return f"{number:.1f}".removesuffix(".0")
    for divisor, unit in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")):
        value = number / divisor
        if value < (9_999.5 if not unit else 999.5):
            return f"{value:.0f}{unit}" if not unit or value >= 99.5 else f"{value:.1f}{unit}"
    return f"{number / 1e12:.3g}T"


def percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{100 * fraction:.0f}%"


def bar(fraction: float, width: int) -> str:
    """A block per full part, and one of eight widths for what is left."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)
