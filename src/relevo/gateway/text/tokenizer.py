"""Text to token ids and back.

Owns what is around the tokens of a text: the begin-of-sequence token, special tokens that are left out. What a token
spells is the `ModelVocabulary`'s. It knows nothing of chat templates or streams (see `chat_template`, `detokenizer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.core.model import TokenizerFiles
from relevo.vocabulary.model_vocabulary import ModelVocabulary

MAX_COMPOSED = 3  # bytes of a text that NFC makes one byte of, at most: Hangul of three letters becomes one of 3 bytes


class Tokenizer:
    """A tokenizer of one model; every method may be called from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        vocabulary = ModelVocabulary(files)
        self.vocabulary = vocabulary
        self._backend = vocabulary.backend
        self.decoder = vocabulary.decoder
        self.bos_token_id = self._named_id(files.bos_token)
        self.eos_token_ids = files.eos_token_ids
        self.vocab_size = vocabulary.size
        self.special_token_ids = vocabulary.special_token_ids
        self.token_to_bytes = vocabulary.token_to_bytes
        self._add_bos = self._resolve_add_bos(files.add_bos_token)
        self._drops_nothing = _drops_nothing(self._backend, vocabulary.added)
        self._longest_token_bytes: int | None = None  # looked for when it is first asked for
        self.whole_texts: Mapping[TokenId, str | None] = _WholeTexts(self.token_to_bytes, self.vocab_size)

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more bytes of a text; None: some may stand for any number."""
        if self._longest_token_bytes is None and self.decoder is not None and self._drops_nothing:
            longest = max(len(token.encode()) for token in self._backend.get_vocab(with_added_tokens=True))
            self._longest_token_bytes = longest * MAX_COMPOSED
        return self._longest_token_bytes

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]:
        """Token ids of `text`; special tokens spelled out in it are recognised.

        add_special_tokens: put the begin-of-sequence token (and whatever else the model wants) around it; False for
        text from a chat template, which writes its own. Raises InvalidRequest if `text` is not valid Unicode.
        """
        try:
            # `encode` keeps the interpreter lock, `encode_batch_fast` releases it and skips the offsets
            encoded = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens and self._add_bos is not False
            )
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest("the text holds a lone surrogate and is not valid Unicode") from error
        token_ids: list[TokenId] = encoded[0].ids
        if add_special_tokens and self._add_bos and self.bos_token_id is not None:
            token_ids.insert(0, self.bos_token_id)
        return token_ids

    def decode(self, token_ids: Sequence[TokenId], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`, taken as a text of its own. Ids outside the vocabulary spell nothing."""
        if self.decoder is None:
            return self.decode_whole(token_ids, skip_special_tokens=skip_special_tokens)
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        spelled = b"".join(self.token_to_bytes(token_id) for token_id in token_ids if token_id not in skipped)
        if self.decoder.strips_first_space:
            spelled = spelled.removeprefix(b" ")
        return spelled.decode("utf-8", self.decoder.errors)

    def decode_whole(self, token_ids: Sequence[TokenId], *, skip_special_tokens: bool = True) -> str:
        """The library's own decoding, for decoders that are not made of bytes (`decoder` is None)."""
        known = [token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]
        text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_to_id(self, token: str) -> TokenId | None:
        """Id of a token as the vocabulary spells it."""
        token_id: TokenId | None = self._backend.token_to_id(token)
        return token_id

    def _named_id(self, token: str | None) -> TokenId | None:
        return None if token is None else self.token_to_id(token)

    def _resolve_add_bos(self, wanted: bool | None) -> bool | None:
        """True: put it there ourselves. False: keep tokenizer.json from doing it. None: it does what is wanted."""
        if wanted is None or self.bos_token_id is None:
            return None
        done = self._backend.encode("", add_special_tokens=True).ids[:1] == [self.bos_token_id]
        return None if done == wanted else wanted


class _WholeTexts(dict[TokenId, str | None]):
    """What each token spells, None where that is no text by itself; filled on demand. A lookup is no call of ours."""

    def __init__(self, spell: Callable[[TokenId], bytes], vocab_size: int) -> None:
        super().__init__()
        self._spell = spell
        self._vocab_size = vocab_size

    def __missing__(self, token_id: TokenId) -> str | None:
        try:
            text = self._spell(token_id).decode()
        except UnicodeDecodeError:
            text = None
        if 0 <= token_id < self._vocab_size:
            self[token_id] = text
        return text


def _drops_nothing(backend: Backend, added: Mapping[int, AddedToken]) -> bool:
    """Whether every byte of a text is in some token, but for what NFC composes."""
    if any(token.lstrip or token.rstrip for token in added.values()):
        return False  # takes in all blanks beside it
    state = None if backend.normalizer is None else json.loads(backend.normalizer.__getstate__())
    steps = [] if state is None else state["normalizers"] if state["type"] == "Sequence" else [state]
    return all(
        step["type"] in ("NFC", "Prepend") or (step["type"] == "Replace" and step["pattern"] == {"String": " "})
        for step in steps
    )
