"""Text of strangers as a terminal may have it: without control characters. Pure.

What a model, a server or another client says could otherwise rename the window, hide what follows or answer in the
person's stead.
"""

from __future__ import annotations

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
