"""Requests of one grammar share what was compiled of it, and not what one of them does to it."""

from __future__ import annotations

import os
import sys
import threading
from typing import cast

import pytest

from held_outputs import BOMB, EOS, fake_grammars, fake_vocabulary, held_request
from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.core.baton import SampleState
from relevo.core.request import EngineRequest
from relevo.engine.fake_model import FAKE_MODEL
from relevo.engine.grammar_masks import GrammarMasks
from relevo.engine.grammars import Grammars
from relevo.vocabulary.grammars import CompiledGrammar, GrammarVocabulary
from relevo.vocabulary.model_vocabulary import ModelVocabulary

(A,) = ModelVocabulary(fake_tokenizer_files()).tokenize("a")


def draws(masks: GrammarMasks, request: EngineRequest, num_tokens: int) -> int:
    """How many tokens an output of nothing but `a` has when it cannot go on."""
    sample = SampleState(0)
    for count in range(num_tokens):
        grammars = masks.of([(0, request, sample)])
        if grammars.places:
            grammars.masks(list(grammars.places))
        if grammars.failures:
            return count
        sample.output_token_ids.append(A)
    return num_tokens


def test_an_output_that_used_up_its_bounds_leaves_others_of_its_grammar_theirs() -> None:
    """Red when requests fail at once because an earlier one had the same schema."""
    masks = GrammarMasks(fake_grammars(), FAKE_MODEL.vocab_size)
    first = draws(masks, held_request(1, [EOS], BOMB), 100)
    assert 1 < first < 100
    assert [draws(masks, held_request(number, [EOS], BOMB), 100) for number in (2, 3)] == [first, first]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_the_thread_that_compiles_gives_way_to_the_steps() -> None:
    """Red when a schema of one client takes a core from the steps of all others."""
    seen: list[int] = []

    class Watched:
        def compile(self, grammar: str) -> CompiledGrammar:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return fake_vocabulary().compile(grammar)

    Grammars(lambda: cast(GrammarVocabulary, Watched())).prepare(BOMB, lambda: None).result()
    assert seen == [19]
