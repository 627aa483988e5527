"""The vocabularies of grammars of a gateway's models: made when it rests, or by the first answer that is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from relevo.build.configs import ServedModelConfig
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.orchestrator.connections import Connections
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.late_vocabulary import REST_S, LateVocabulary
from relevo.vocabulary.verdicts import GrammarVerdicts


class LateVocabularies:
    def __init__(self, num_in_flight: Callable[[], int], rest_s: float = REST_S) -> None:
        self._num_in_flight, self._rest_s = num_in_flight, rest_s
        self._all: list[LateVocabulary] = []

    def verdicts(self, config: ServedModelConfig, tokenizer: Tokenizer) -> GrammarVerdicts:
        """What the model's workers will say of grammars."""
        verdicts = GrammarVerdicts(lambda: GrammarVocabulary.of(tokenizer.vocabulary, config.vocab_size))
        self._all.append(verdicts.vocabulary)
        return verdicts

    async def run(self, connections: Sequence[Connections]) -> None:
        """Until all are made. Nothing rests before all workers have come: until then they have use for the cores."""
        for each in connections:
            await each.ready.wait()
        look_s = self._rest_s / 2
        for vocabulary in self._all:
            rested_s = 0.0
            while not vocabulary.is_made and rested_s <= self._rest_s:
                await asyncio.sleep(look_s)
                rested_s = 0.0 if self._num_in_flight() else rested_s + look_s
            await asyncio.to_thread(vocabulary.make)
