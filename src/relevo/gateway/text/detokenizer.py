"""Turns a stream of token ids into a stream of text that never holds half a character.

Owns the tail between tokens: incomplete UTF-8, the space a tokenizer puts before the first word. It knows nothing of
stop strings or of HTTP. Constant work per token, whatever the length of the text.
"""

from __future__ import annotations

import codecs

from relevo.core.ids import TokenId
from relevo.gateway.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_WINDOW_TOKENS = 16  # arbitrary; a window that shows no character boundary for so long is taken as it is


class IncrementalDetokenizer:
    """One continuation. Concatenated, what `add` and `flush` return is the decoding of all tokens.

    continues_text: the tokens follow other text (a completion's prompt), so the space before a first word is kept;
    otherwise a SentencePiece tokenizer's leading space is taken off, as decoding a whole text does.
    kept_token_ids: special tokens that are not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
        kept_token_ids: frozenset[TokenId] = frozenset(),
    ) -> None:
        self._skipped = tokenizer.special_token_ids - kept_token_ids if skip_special_tokens else frozenset()
        self._text: _ByteText | _WindowText
        if tokenizer.decoder is None:
            self._text = _WindowText(tokenizer)
        else:
            self._text = _ByteText(tokenizer, strip=tokenizer.decoder.strips_first_space and not continues_text)

    def add(self, token_id: TokenId) -> str:
        """The text that is certain once this token is known; often empty, never half a character."""
        return "" if token_id in self._skipped else self._text.add(token_id)

    def flush(self) -> str:
        """What was held back, at the end of the stream; U+FFFD for a character that was never finished."""
        return self._text.flush()


class _ByteText:
    """Tokens that spell bytes."""

    def __init__(self, tokenizer: Tokenizer, *, strip: bool) -> None:
        assert tokenizer.decoder is not None
        self._spell = tokenizer.token_to_bytes
        self._whole_texts = tokenizer.whole_texts
        self._errors = tokenizer.decoder.errors
        self._strip = strip
        self._rest = b""  # the beginning of a character

    def add(self, token_id: TokenId) -> str:
        if not self._rest and not self._strip:
            whole = self._whole_texts[token_id]
            if whole is not None:
                return whole
        spelled = self._spell(token_id)
        if self._strip and spelled:
            self._strip = False
            spelled = spelled.removeprefix(b" ")
        return self._decode(spelled, is_last=False)

    def flush(self) -> str:
        return self._decode(b"", is_last=True)

    def _decode(self, spelled: bytes, *, is_last: bool) -> str:
        data = self._rest + spelled
        text, num_decoded = codecs.utf_8_decode(data, self._errors, is_last)
        self._rest = data[num_decoded:]
        return text


class _WindowText:
    """Any other decoder: decode a short window twice, with and without the new tokens, and emit the difference."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode_whole
        self._known: list[TokenId] = []  # already emitted; kept because a decoder looks at what comes before
        self._new: list[TokenId] = []

    def add(self, token_id: TokenId) -> str:
        self._new.append(token_id)
        delta = self._difference()
        if len(self._new) < _WINDOW_TOKENS and (not delta or delta.endswith(_REPLACEMENT)):
            return ""
        self._known, self._new = self._new, []
        return delta

    def flush(self) -> str:
        delta = self._difference() if self._new else ""
        self._known, self._new = self._known + self._new, []
        return delta

    def _difference(self) -> str:
        before = self._decode(self._known, skip_special_tokens=False)
        return self._decode(self._known + self._new, skip_special_tokens=False)[len(before) :]
