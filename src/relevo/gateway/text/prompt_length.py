"""Tokenising a text that must fit the context: a text that cannot fit is refused before it costs what it would.

Owns the bounds by which that is known early. A text that fits is tokenised whole, so its tokens never depend on them.
"""

from __future__ import annotations

from relevo.core.ids import TokenId
from relevo.gateway.text.served_models import TextTokenizer

PIECE_CHARS = 64 * 1024  # arbitrary: tokenising one takes a tenth of a second
BYTES_PER_TOKEN = 4  # arbitrary: about what texts have; shorter ones are tokenised without a look at their pieces
CUT_TOKENS = 256  # arbitrary, far above the longest token: by so many tokens at most does a cut change a count


def encode_within(
    tokenizer: TextTokenizer, text: str, max_tokens: int, *, add_special_tokens: bool
) -> list[TokenId] | int:
    """Token ids of `text`; or, if it has more than `max_tokens`, possibly only a number that it has at least.

    In this order: by bytes (no token stands for more than `longest_token_bytes`), then piece by piece until it cannot
    fit any more, then whole.
    """
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if num_bytes <= max_tokens * BYTES_PER_TOKEN:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    longest = tokenizer.longest_token_bytes
    if longest is not None and num_bytes > max_tokens * longest:
        return -(-num_bytes // longest)
    if len(text) > PIECE_CHARS:
        num_tokens = 0
        for start in range(0, len(text), PIECE_CHARS):
            piece = tokenizer.encode(text[start : start + PIECE_CHARS], add_special_tokens=False)
            num_tokens += max(0, len(piece) - CUT_TOKENS)
            if num_tokens > max_tokens:
                return num_tokens
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)
