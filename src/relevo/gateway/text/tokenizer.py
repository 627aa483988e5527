"""Text to token ids and back.

Owns the Hugging Face `tokenizers` object and what each token spells. It knows nothing of
chat templates or streams (see `chat_template`, `detokenizer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from relevo.core.errors import InvalidRequest, ModelFileError
from relevo.core.ids import TokenId
from relevo.core.model import TokenizerFiles
from relevo.gateway.text.token_bytes import byte_decoder_of


def backend_of(files: TokenizerFiles) -> Backend:
    """The library's tokenizer. Raises what the library raises, nothing narrower than Exception."""
    if files.bpe is None:
        return Backend.from_str(files.tokenizer_json)
    document = json.loads(files.tokenizer_json)
    added = document["added_tokens"]  # they take the vocabulary's ids, so they come after it
    backend = Backend.from_str(json.dumps({**document, "added_tokens": []}))
    stated = backend.model
    backend.model = BPE(
        files.bpe.vocab,
        files.bpe.merges,
        unk_token=stated.unk_token,
        fuse_unk=stated.fuse_unk,
        byte_fallback=stated.byte_fallback,
        ignore_merges=stated.ignore_merges,
    )
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    backend.add_tokens([AddedToken(token["content"], **{flag: token[flag] for flag in flags}) for token in added])
    return backend


MAX_COMPOSED = 3  # bytes of a text that NFC makes one byte of, at most: Hangul of three letters becomes one of 3 bytes


class Tokenizer:
    """A tokenizer of one model; every method may be called from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            backend = backend_of(files)
        except Exception as error:  # the library raises nothing narrower
            raise ModelFileError(f"the model's tokenizer cannot be loaded: {error}") from error
        backend.no_truncation()  # a file may carry the settings of a training run
        backend.no_padding()
        self._backend = backend
        self.decoder = byte_decoder_of(None if backend.decoder is None else json.loads(backend.decoder.__getstate__()))
        self.bos_token_id = self._named_id(files.bos_token)
        self.eos_token_ids = files.eos_token_ids
        added = backend.get_added_tokens_decoder()
        # one more than the highest id: added tokens may leave a gap behind the others
        self.vocab_size: int = max(backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added), 0)
        self._added_ids = frozenset(added)
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._add_bos = self._resolve_add_bos(files.add_bos_token)
        self._drops_nothing = _drops_nothing(backend, added)
        self._longest_token_bytes: int | None = None  # looked for when it is first asked for
        self._bytes: dict[TokenId, bytes] = {}  # filled on demand, at most one entry per token of the vocabulary
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

    def token_to_bytes(self, token_id: TokenId) -> bytes:
        """What the token adds to a text; may be part of a character. Empty for an id outside the vocabulary."""
        spelled = self._bytes.get(token_id)
        if spelled is None:
            token = self._backend.id_to_token(token_id) if token_id >= 0 else None
            if token is None:
                return b""
            decoder = self.decoder
            is_added = (
                token_id in self._added_ids and len(token) > 1
            )  # one character may be the spelling of a byte, too
            is_text = decoder is None or (decoder.added_as_they_are and is_added)
            spelled = token.encode() if decoder is None or is_text else decoder.spell(token)
            self._bytes[token_id] = spelled
        return spelled

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
