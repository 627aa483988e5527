"""Grammars over the fake engine's tokens, and what a request that is held to one must be answered with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from llguidance import LLMatcher

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.core.ids import RequestId, TokenId
from relevo.core.request import EngineRequest, SamplingParams
from relevo.engine.fake_model import FAKE_MODEL, Allowed, FakeModel
from relevo.engine.grammars import Grammars
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.model_vocabulary import ModelVocabulary

EOS: TokenId = 256
SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 0, "maximum": 9999},
        "unit": {"enum": ["kg", "g", "lb"]},
        "notes": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    },
    "required": ["amount", "unit", "notes"],
    "additionalProperties": False,
}
AMOUNT = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
WORDS = LLMatcher.grammar_from_regex("[a-d]{2}( [a-d]{2})*")  # may end soon and need not
BOMB = LLMatcher.grammar_from_regex("((a{1,100}){1,100}){1,100}")  # dies about 30 tokens into the output
DOOMED = LLMatcher.grammar_from_regex("(" * 7 + "a{1,9}" + "){1,9}" * 7)  # about ten tokens into it
BROKEN = LLMatcher.grammar_from_regex("(a|")


@lru_cache
def fake_vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary.of(ModelVocabulary(fake_tokenizer_files()), FAKE_MODEL.vocab_size)


def fake_grammars() -> Grammars:
    return Grammars(fake_vocabulary)


def held_request(
    number: int, prompt: Sequence[TokenId], grammar: str | None = AMOUNT, **sampling: object
) -> EngineRequest:
    params = {"max_tokens": 60, "seed": number, "temperature": 1.0, "grammar": grammar} | sampling
    return EngineRequest(
        request_id=RequestId(f"r{number}"),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**params),  # type: ignore[arg-type]
        eos_token_ids=(EOS,),
    )


def expected(request: EngineRequest, sample_index: int = 0) -> list[TokenId]:
    """By a matcher that is made anew for every token."""
    grammar = request.sampling.grammar
    return FakeModel().reference_tokens(
        request.prompt_token_ids,
        request.sampling,
        eos_token_ids=request.eos_token_ids,
        sample_index=sample_index,
        allowed_after=None if grammar is None else lambda output: _allowed(grammar, output),
    )


def _allowed(grammar: str, output: Sequence[TokenId]) -> Allowed:
    matcher = fake_vocabulary().compile(grammar).start()
    matcher.follow(output)
    mask = int.from_bytes(matcher.state.compute_bitmask(), "little")
    return lambda token_id: bool(mask >> token_id & 1)


def is_amount(token_ids: Sequence[TokenId]) -> bool:
    """A whole output of AMOUNT, its end token included."""
    if token_ids[-1] != EOS:
        return False
    told = json.loads(text_of(token_ids))
    return (
        set(told) == {"amount", "unit", "notes"}
        and isinstance(told["amount"], int)
        and told["unit"] in ("kg", "g", "lb")
        and set(told["notes"]) <= {"a", "bc"}
    )


def text_of(token_ids: Sequence[TokenId]) -> str:
    vocabulary = ModelVocabulary(fake_tokenizer_files())
    return b"".join(vocabulary.token_to_bytes(token_id) for token_id in token_ids if token_id != EOS).decode()
