"""Text as a terminal may have it: without control characters, in lines that fit, dim where colours are wanted. Pure.

What a model or a server says is a stranger's text: an escape sequence in it could rename the window, hide what follows
or answer in the person's stead.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTROL_PICTURES = 0x2400
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # overrides and isolates: they reorder what follows
_SHOWN: dict[int, str | None] = {
    **{code: chr(_CONTROL_PICTURES + code) for code in range(0x20)},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), *_BIDIRECTIONAL), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # halves of surrogate pairs: no encoding has them
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): None,
}


def visible(text: str) -> str:
    """Control characters become pictures of themselves; line breaks and tabs stay."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    return " ".join(visible(text).split())


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
