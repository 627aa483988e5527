"""Which tokens a model has: its tokenizer's files, and the vocabulary that grammars are compiled over."""

from __future__ import annotations

import logging

from relevo.core.errors import StartError
from relevo.core.model import TokenizerFiles
from relevo.vocabulary.grammars import GrammarVocabulary

log = logging.getLogger("relevo.engine")


def tokenizer_files(model: str, revision: str | None, download_dir: str | None) -> TokenizerFiles:
    """Raises StartError when the model brings no tokenizer."""
    if model == "fake":
        from relevo.build.fake_tokenizer import fake_tokenizer_files

        return fake_tokenizer_files()
    from relevo.engine.loaders.tokenizer_files import load_tokenizer_files

    return load_tokenizer_files(model, revision=revision, download_dir=download_dir)


def grammar_vocabulary(
    model: str, revision: str | None, download_dir: str | None, vocab_size: int
) -> GrammarVocabulary:
    """`vocab_size`: of a row of logits. Raises StartError when the model brings no tokenizer."""
    from relevo.vocabulary.model_vocabulary import ModelVocabulary  # the tokenizers library

    try:
        files = tokenizer_files(model, revision, download_dir)
        return GrammarVocabulary.of(ModelVocabulary(files), vocab_size)
    except StartError as error:  # what needs no grammar can be served
        log.warning("no output can be held to a grammar: %s", error)
        raise
