"""Text in lines that fit, dim where colours are wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass


def filled(parts: list[str], width: int, between: str = " · ") -> str:
    """`parts` in as few lines as fit, broken between parts only."""
    lines = [parts[0]] if parts else []
    for part in parts[1:]:
        if len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1] += between + part
        else:
            lines.append(part)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Style:
    """`has_colour`: the output is a terminal and NO_COLOR is not set."""

    has_colour: bool

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.has_colour else text

    def bold_prompt(self, text: str) -> str:
        """For readline, which must know what takes no room."""
        return f"\x01\x1b[1m\x02{text}\x01\x1b[0m\x02" if self.has_colour else text
