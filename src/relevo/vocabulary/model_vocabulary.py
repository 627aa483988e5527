"""The tokens of one model: what each spells in bytes, which are special, how many there are.

Owns the reading of `TokenizerFiles` into a Hugging Face `tokenizers` object and the spelling of its tokens. The gateway
makes text of it, and both sides make grammars over it (`grammars`). It knows nothing of prompts, templates or streams.
"""

from __future__ import annotations

import json

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from relevo.core.errors import ModelFileError
from relevo.core.ids import TokenId
from relevo.core.model import TokenizerFiles
from relevo.vocabulary.token_bytes import byte_decoder_of


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


class ModelVocabulary:
    """Every method may be called from any thread."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises ModelFileError."""
        try:
            backend = backend_of(files)
        except Exception as error:  # the library raises nothing narrower
            raise ModelFileError(f"the model's tokenizer cannot be loaded: {error}") from error
        backend.no_truncation()  # a file may carry the settings of a training run
        backend.no_padding()
        self.backend = backend
        self.decoder = byte_decoder_of(None if backend.decoder is None else json.loads(backend.decoder.__getstate__()))
        # more than one template's: which of them end an answer depends on the template that it is served with
        self.end_token_ids = tuple(dict.fromkeys((*files.eos_token_ids, *files.turn_end_ids.values())))
        self.added = backend.get_added_tokens_decoder()
        # one more than the highest id: added tokens may leave a gap behind the others
        self.size: int = max(backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in self.added), 0)
        self.special_token_ids = frozenset(token_id for token_id, token in self.added.items() if token.special)
        self._bytes: dict[TokenId, bytes] = {}  # filled on demand, at most one entry per token

    def token_to_bytes(self, token_id: TokenId) -> bytes:
        """What the token adds to a text; may be part of a character. Empty for an id outside the vocabulary."""
        spelled = self._bytes.get(token_id)
        if spelled is None:
            token = self.backend.id_to_token(token_id) if token_id >= 0 else None
            if token is None:
                return b""
            decoder = self.decoder
            is_added = token_id in self.added and len(token) > 1  # one character may be the spelling of a byte, too
            is_text = decoder is None or (decoder.added_as_they_are and is_added)
            spelled = token.encode() if decoder is None or is_text else decoder.spell(token)
            self._bytes[token_id] = spelled
        return spelled

    def tokenize(self, text: str) -> list[TokenId]:
        """Of text that goes on inside another: nothing is put around it."""
        token_ids: list[TokenId] = self.backend.encode(text, add_special_tokens=False).ids
        return token_ids
