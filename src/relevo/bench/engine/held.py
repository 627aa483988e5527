"""The grammar that `relevo bench engine --held` holds every row to: a list of small objects that does not end.

Its masks are of all kinds: a single token where a key is forced, a few in numbers and enums, nearly all in strings.
"""

from __future__ import annotations

from relevo.bench.engine.words import EngineUnderTest
from relevo.core.ids import RequestId, TokenId
from relevo.core.request import EngineRequest, SamplingParams

_OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "state": {"enum": ["open", "closed", "unknown"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "count", "state", "tags"],
    "additionalProperties": False,
}
_ENDLESS = 10_000  # objects; far beyond every step that is measured


def held_grammar() -> str:
    from llguidance import LLMatcher

    schema = {"type": "array", "items": _OBJECT, "minItems": _ENDLESS}
    grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    return grammar


def first_token(engine: EngineUnderTest, grammar: str) -> TokenId:
    """Of an output that is held to it."""
    scheduler = engine.new_scheduler()
    sampling = SamplingParams(max_tokens=1, seed=0, temperature=0.0, grammar=grammar)
    scheduler.submit(EngineRequest(request_id=RequestId("first"), prompt_token_ids=(1,), sampling=sampling), (), 0)
    plan = scheduler.plan(0)
    assert plan is not None, "a prompt of one token fits everywhere"
    ((token,),) = engine.runner.execute(plan).sampled
    return token.token_id
