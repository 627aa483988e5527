"""What single tokens spell, in bytes, for the two kinds of decoder that decoder-only models have.

Owns the reading of a `tokenizers` decoder description. It knows nothing of streams or of special tokens.
Source: `tokenizers` decoders ByteLevel, ByteFallback and Replace; GPT-2's spelling of bytes as printable characters.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SPACE = "\u2581"  # how SentencePiece spells a space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

REPLACE_EACH_BYTE = "relevo-replace-each-byte"  # an error handler: one U+FFFD per byte, not one per sequence

TokenSpelling = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class ByteDecoder:
    """Decoding is joining `spell(token)` over the tokens and reading the bytes as UTF-8."""

    spell: TokenSpelling
    strips_first_space: bool = False  # one space at the very start of a text is the tokenizer's own
    errors: str = "replace"  # the error handler for bytes that are not UTF-8
    added_as_they_are: bool = (
        False  # added tokens are found in the text itself, so they are not spelled in its alphabet
    )


def byte_decoder_of(decoder: dict[str, Any] | None) -> ByteDecoder | None:
    """The byte decoder equal to `decoder` of a tokenizer.json; None if that is of another kind."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteDecoder(_spell_byte_level, added_as_they_are=True)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _reads_space(steps[0]):
        if kinds[3:] == []:
            return ByteDecoder(_spell_sentencepiece, errors=REPLACE_EACH_BYTE)
        if kinds[3:] == ["Strip"] and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) == (" ", 1, 0):
            return ByteDecoder(_spell_sentencepiece, strips_first_space=True, errors=REPLACE_EACH_BYTE)
    return None


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(REPLACE_EACH_BYTE, _replace_each_byte)


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _reads_space(step: dict[str, Any]) -> bool:
    return bool(step.get("pattern") == {"String": _SPACE} and step.get("content") == " ")


def _alphabet() -> str:
    """GPT-2's, by byte: printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (byte for byte in range(256) if byte not in printable)
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return "".join(characters[byte] for byte in range(256))


_BYTE_OF_CHARACTER = codecs.charmap_build(_alphabet())


def _spell_byte_level(token: str) -> bytes:
    """A token with a character outside the alphabet stands for itself."""
    try:
        return codecs.charmap_encode(token, "strict", _BYTE_OF_CHARACTER)[0]
    except UnicodeEncodeError:
        return token.encode()


def _spell_sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()
