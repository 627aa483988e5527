"""What is too large for a model's vocabulary: the gateway refuses it by its field, or holds it less and says so."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from held_walks import EOS, MARKS, byte_spellings, byte_vocabulary
from scripted_gateway import Rig, rig, says

from relevo.core.errors import InvalidGrammar, InvalidRequest
from relevo.engine.grammars import Grammars
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.dialects.formats import ToolFormat
from relevo.gateway.dialects.registry import TOOL_FORMATS
from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.held.client_grammars import MAX_CONJUNCTIONS
from relevo.gateway.held.fitting import fitted
from relevo.gateway.held.output import Wanted
from relevo.vocabulary.grammars import GrammarVocabulary
from relevo.vocabulary.verdicts import GrammarVerdicts

MANY = [{"const": f"c{number}"} for number in range(4000)]  # each is a rule and a term
HUGE = {"type": "object", "properties": {"list": {"type": "array", "prefixItems": MANY, "items": False}}}
SMALL = {"type": "object", "properties": {"city": {"enum": ["Brest", "Nice"]}}, "required": ["city"]}


def tool(name: str, parameters: Any, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


def verdicts() -> GrammarVerdicts:
    return GrammarVerdicts(byte_vocabulary)


def of_family(family: ToolFormat) -> Rig:
    return rig(
        says("text"),
        max_model_len=10**7,
        tool_format=family,
        make_parser=ComposedParsers(None, family),
        grammar_refusal=verdicts().refusal_of,
    )


@cache
def workers() -> Grammars:
    """Over a vocabulary of their own, as in another process."""
    return Grammars(lambda: GrammarVocabulary(byte_spellings(), (EOS, *MARKS.values()), (EOS,)))


HERMES = TOOL_FORMATS["hermes"]
ODD_TOOLS: dict[str, Any] = {
    "none": {},
    "no schema": {"properties": None},
    "a format": {"properties": {"a": {"format": "path"}}},
    "no value": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "recursion": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "patterns": {"type": "object", "properties": {"a": {"allOf": [{"pattern": f"^[a-z]{{{n}}}"} for n in range(12)]}}},
    "names": {"type": "object", "properties": {'"<|x|>/\\\n': {"type": "string"}, "</a>": {"const": "é\x00"}}},
}
ASKED = {
    "required": {"tool_choice": "required"},
    "one": {"tool_choice": "required", "parallel_tool_calls": False},
    "beside a form": {"response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("family", [name for name, known in TOOL_FORMATS.items() if known.shape is not None])
async def test_the_workers_compile_every_grammar_that_the_gateway_lets_pass(family: str) -> None:
    """Red once a grammar reaches a request without the vocabulary's verdict, or the two sides have other bounds."""
    r, num_held = of_family(TOOL_FORMATS[family]), 0
    for (kind, schema), asked, strict in itertools.product(ODD_TOOLS.items(), ASKED.values(), (False, True)):
        answer = await r.chat(tools=[tool("odd", schema, strict=strict), tool("plain", SMALL)], **asked)
        if answer.status_code != 200:
            assert answer.status_code == 400, (kind, answer.text)
            assert answer.json()["error"]["param"] in ("tools", "tool_choice", "response_format"), (kind, answer.text)
            continue
        grammar = r.generator.requests[-1].sampling.grammar
        if grammar is not None:
            num_held += 1
            workers().get(grammar)  # raises InvalidGrammar
    shape = TOOL_FORMATS[family].shape
    assert num_held or (shape is not None and shape.arguments not in ("json", "parameters", "python"))


async def test_a_form_that_is_too_large_is_refused_by_its_field() -> None:
    r = of_family(HERMES)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": HUGE}}
    answer = await r.chat(response_format=form)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format") and "smaller" in error["message"], error
    assert not r.generator.requests


async def test_of_tools_that_are_not_strict_the_largest_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.gateway.held.problems.MAX_THREAD_S", 60.0)  # a loaded machine counts more seconds
    r = of_family(HERMES)
    answer = await r.chat(tools=[tool("small", SMALL), tool("huge", HUGE)], tool_choice="required")
    assert answer.status_code == 200, answer.text
    notes = answer.headers["x-relevo-notes"]
    assert "tool 'huge' is held as any object: it is too large" in notes and "'small'" not in notes
    held = r.generator.requests[-1].sampling.grammar
    assert held is not None and "Brest" in held and "c3999" not in held


async def test_a_strict_tool_that_is_too_large_is_named() -> None:
    answer = await of_family(HERMES).chat(tools=[tool("small", SMALL, strict=True), tool("huge", HUGE, strict=True)])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools") and "'huge'" in error["message"], error


async def test_strict_tools_of_a_family_that_is_not_held_are_noted() -> None:
    r = rig(says("text"), max_model_len=4000)
    answer = await r.chat(tools=[tool("plain", SMALL), tool("exact", SMALL, strict=True)])
    assert answer.status_code == 200 and r.generator.requests[-1].sampling.grammar is None
    notes = answer.headers["x-relevo-notes"]
    assert "tool 'exact' is strict" in notes and "'plain'" not in notes


def test_a_verdict_is_worked_out_once() -> None:
    compiled: list[str] = []

    class Counting(GrammarVocabulary):
        def compile(self, grammar: str) -> Any:
            compiled.append(grammar)
            return super().compile(grammar)

    asked = GrammarVerdicts(lambda: Counting(byte_spellings(), (EOS,), (EOS,)))
    wanted = Wanted(output_format=OutputFormat(kind="json_schema", value=SMALL, is_strict=True))
    first = fitted(wanted, asked.refusal_of)
    assert fitted(wanted, asked.refusal_of) == first and len(compiled) == 1


@pytest.mark.parametrize("num_rules", [6_000, 12_000])
def test_a_chain_of_rules_is_refused_or_compiled_and_ends_no_process(num_rules: int) -> None:
    """The compiler recurses from rule to rule; on a usual stack it overflows."""
    chain = "start: r0\n" + "".join(f'r{n}: "a" r{n + 1}\n' for n in range(num_rules)) + f'r{num_rules}: "z"\n'
    wanted = Wanted(output_format=OutputFormat(kind="grammar", value=chain, param="grammar"))
    if num_rules == 6_000:
        assert fitted(wanted, verdicts().refusal_of).grammar
        return
    with pytest.raises(InvalidRequest, match="10,000 lines"):
        fitted(wanted, verdicts().refusal_of)


def test_conjunctions_of_a_clients_grammar_are_bounded() -> None:
    """Eleven of them can take minutes."""
    parts = [f"/(.*[ab]){{{n}}}.*/" for n in range(MAX_CONJUNCTIONS + 2)]
    lark = f"start: T\nT: {' & '.join(parts)}\n"
    with pytest.raises(InvalidRequest, match="'&' and '~'"):
        fitted(Wanted(output_format=OutputFormat(kind="grammar", value=lark)), verdicts().refusal_of)
    harmless = 'start: T\nT: /[&~]+/ "&&&&&&&&~~~~~~~~~~"  // &&&&&&&&&&&&&&&&&&\n'
    assert fitted(Wanted(output_format=OutputFormat(kind="grammar", value=harmless)), verdicts().refusal_of).grammar


def test_more_patterns_of_one_text_than_can_be_worked_out_are_refused_with_their_place() -> None:
    schema = {"properties": {"a": {"type": "string", "allOf": [{"pattern": f"(.*[ab]){{{n}}}"} for n in range(12)]}}}
    wanted = Wanted(output_format=OutputFormat(kind="json_schema", value=schema, is_strict=True))
    with pytest.raises(InvalidRequest, match="'pattern' at /properties/a"):
        fitted(wanted, verdicts().refusal_of)


def test_a_vocabulary_that_holds_nothing_refuses_everything() -> None:
    nothing = GrammarVerdicts(lambda: GrammarVocabulary(byte_spellings(), (), ()))
    wanted = Wanted(output_format=OutputFormat(kind="json_object", value=None, param="response_format"))
    with pytest.raises(InvalidRequest, match="no end-of-sequence token") as refusal:
        fitted(wanted, nothing.refusal_of)
    assert refusal.value.param == "response_format"
    with pytest.raises(InvalidGrammar):
        byte_vocabulary().compile("{")
