"""Answers drawn at random from a grammar, token by token, as a model without any sense would write them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.held.output import Held, Wanted, held
from relevo.vocabulary.grammars import GrammarVocabulary

EOS = 256
MARKS = {"<think>": 257, "</think>": 258, "<call>": 259, "</call>": 260}  # special tokens of the byte vocabulary
ENDINGS = (b'"', b"]", b"}")


def byte_spellings() -> Sequence[bytes]:
    return [bytes((byte,)) for byte in range(256)] + [b"<end>"] + [mark.encode() for mark in MARKS]


@cache
def byte_vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(byte_spellings(), (EOS, *MARKS.values()), (EOS,))


def of_schema(schema: Any, *, is_strict: bool = True, **parts: Any) -> Held:
    return held(Wanted(output_format=OutputFormat(kind="json_schema", value=schema, is_strict=is_strict, **parts)))


def tokens_of(text: str, marks: dict[str, int] | None = None) -> list[int]:
    """In the byte vocabulary. `marks`: texts that are one token."""
    found: list[int] = []
    rest = text.encode()
    while rest:
        mark = next((mark for mark in marks or {} if rest.startswith(mark.encode())), None)
        found.append((marks or {})[mark] if mark else rest[0])
        rest = rest[len(mark.encode()) if mark else 1 :]
    return found


def takes(grammar: str, text: str, marks: dict[str, int] | None = None) -> bool:
    """Whether the whole text is an answer of the grammar."""
    matcher = byte_vocabulary().compile(grammar).start()
    matcher.follow(tokens_of(text, marks))
    return not matcher.failure and matcher.may_end


def next_tokens(grammar: str, text: str, marks: dict[str, int] | None = None) -> set[int]:
    """What may follow `text`; fails if `text` itself may not be written."""
    matcher = byte_vocabulary().compile(grammar).start()
    matcher.follow(tokens_of(text, marks))
    allowed = legal(matcher.state)
    assert not matcher.failure, (text, matcher.failure)
    return set(allowed)


def legal(state: Any) -> list[int]:
    mask = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
    found: list[int] = np.nonzero(np.unpackbits(mask, bitorder="little"))[0].tolist()
    return found


def walk(
    grammar: str,
    rng: random.Random,
    vocabulary: GrammarVocabulary | None = None,
    spellings: Sequence[bytes] = (),
    max_tokens: int = 1500,
    nudge: bytes = b"",
) -> bytes | None:
    """An answer; None if it was not over after `max_tokens`. Fails where no token may follow, or the matcher fails."""
    vocabulary, spellings = vocabulary or byte_vocabulary(), spellings or byte_spellings()
    matcher = vocabulary.compile(grammar).start()
    written = bytearray()
    output: list[int] = []
    while len(output) < max_tokens:
        allowed = legal(matcher.state)
        assert not matcher.failure, (bytes(written), matcher.failure)
        ends = [token for token in allowed if token in vocabulary.eos_token_ids]
        others = [token for token in allowed if token not in vocabulary.eos_token_ids]
        assert bool(ends) == matcher.may_end, "an answer may end exactly where it is whole"
        assert allowed, ("nothing may follow", bytes(written))
        if ends and (not others or rng.random() < 0.5):
            return bytes(written)
        token = rng.choice(others)
        if rng.random() < min(0.9, 0.1 + len(output) / 200):  # sooner or later it comes to its end
            closing = [one for one in others if spellings[one][-1:] in ENDINGS]
            going_on = _next_of(nudge, written)
            if going_on in others:
                closing = [going_on]
            token = rng.choice(closing or others)
        elif vocabulary is byte_vocabulary() and rng.random() < 0.9:
            token = rng.choice([one for one in others if one < 128] or others)
        output.append(token)
        matcher.follow(output)
        written += spellings[token]
    return None


def _next_of(nudge: bytes, written: bytearray) -> int:
    """The byte with which what was written goes on towards `nudge`."""
    known = next((size for size in range(len(nudge) - 1, 0, -1) if written.endswith(nudge[:size])), 0)
    return nudge[known] if nudge else -1
