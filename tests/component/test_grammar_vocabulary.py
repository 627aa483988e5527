"""Grammars over a model's tokens: what is let through, where an output may end, what is refused and in which words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.core.errors import InvalidGrammar
from relevo.vocabulary.grammars import MAX_GRAMMAR_BYTES, GrammarMatcher, GrammarVocabulary
from relevo.vocabulary.model_vocabulary import ModelVocabulary

BYTES = [bytes([value]) for value in range(256)]
END, OTHER_END, MARKUP, AB, SECOND_A, NOTHING = range(256, 262)
TOKENS = [*BYTES, b"<|end|>", b"<|eot|>", b"<|call|>", b"ab", b"a", b""]
VOCABULARY = GrammarVocabulary(TOKENS, {END, MARKUP}, (END, OTHER_END))
AMOUNT = LLMatcher.grammar_from_json_schema(
    {
        "type": "object",
        "properties": {"amount": {"type": "integer"}, "unit": {"enum": ["kg", "g"]}},
        "required": ["amount", "unit"],
        "additionalProperties": False,
    },
    overrides={"whitespace_flexible": False},
)
WIDE = {"type": "object", "properties": {f"key{i}": {"type": "integer"} for i in range(3000)}}


def let_through(matcher: GrammarMatcher) -> list[int]:
    mask = int.from_bytes(matcher.state.compute_bitmask(), "little")
    return [token_id for token_id in range(VOCABULARY.size) if mask >> token_id & 1]


def matcher_after(grammar: str, output: Sequence[int]) -> GrammarMatcher:
    matcher = VOCABULARY.compile(grammar).start()
    matcher.follow(output)
    return matcher


@given(st.lists(st.integers(0, 1 << 16), min_size=1, max_size=60), st.data())
def test_a_matcher_follows_from_the_output_alone(choices: list[int], data: st.DataObject) -> None:
    """Red when a matcher that takes over an output, in any pieces, lets through something else than the one that saw it
    grow; or when end-of-sequence is let through where the output is not whole."""
    compiled = VOCABULARY.compile(AMOUNT)
    whole, output = compiled.start(), list[int]()
    for choice in choices:
        allowed = let_through(whole)
        later = compiled.start()
        cut = data.draw(st.integers(0, len(output)))
        later.follow(output[:cut])
        later.follow(output)
        assert let_through(later) == allowed
        assert ({END, OTHER_END} <= set(allowed)) == whole.may_end == ({END, OTHER_END} & set(allowed) != set())
        output.append(allowed[choice % len(allowed)])
        whole.follow(output)
        assert whole.failure == ""
        if output[-1] in (END, OTHER_END):
            text = b"".join(TOKENS[token_id] for token_id in output[:-1])
            assert set(json.loads(text)) == {"amount", "unit"}
            return


@pytest.mark.parametrize(
    "grammar",
    [
        AMOUNT,
        LLMatcher.grammar_from_json_schema({"type": "object"}),
        LLMatcher.grammar_from_regex("a[bc]|ab*"),
        LLMatcher.grammar_from_regex("(?s:.*)x"),
        LLMatcher.grammar_from_lark(f'start: /[a-c]*/ (<[{MARKUP}]> "ab" start)?'),
    ],
)
@given(st.lists(st.integers(0, 1 << 16), min_size=1, max_size=12))
def test_single_tokens_are_let_through_as_the_mask_says(grammar: str, choices: list[int]) -> None:
    """Of every token: ends, special ones, two of one spelling, one that spells nothing. Red when a draw that asks about
    its token alone could be another one than with the mask."""
    compiled = VOCABULARY.compile(grammar)
    asked, masked, output = compiled.start(), compiled.start(), list[int]()
    for choice in choices:
        allowed, forced = let_through(masked), asked.forced_token()
        if forced is None:
            assert [token_id for token_id in range(VOCABULARY.size) if asked.lets_through(token_id)] == allowed
        else:
            assert allowed == [forced]
        output.append(allowed[choice % len(allowed)])
        if output[-1] in (END, OTHER_END):
            return
        asked.follow(output)
        masked.follow(output)


def test_tokens_that_spell_the_same_are_let_through_together() -> None:
    """Red when only one id of a spelling is known: the model may have learnt the other."""
    assert {ord("a"), SECOND_A, AB} == set(let_through(matcher_after(LLMatcher.grammar_from_regex("a[bc]"), [])))


def test_special_tokens_are_no_text() -> None:
    """`<|eot|>` is an end that the files do not call special. Red when one could stand in a string for its spelling:
    the output would end there, or lose a piece that clients are not shown."""
    any_text = LLMatcher.grammar_from_regex("(?s:.*)x")
    allowed = let_through(matcher_after(any_text, []))
    assert not {END, OTHER_END, MARKUP, NOTHING} & set(allowed)
    assert set(let_through(matcher_after(any_text, [ord("x")]))) >= {END, OTHER_END, ord("x")}


def test_a_special_token_that_a_grammar_names_is_let_through() -> None:
    """Red when tool formats that begin with one cannot be held any more."""
    grammar = LLMatcher.grammar_from_lark('start: <|call|> "x"')
    assert let_through(matcher_after(grammar, [])) == [MARKUP]


def test_after_an_output_that_cannot_be_longer_only_its_end_comes() -> None:
    """Red when a whole output is followed by anything else."""
    matcher = matcher_after(LLMatcher.grammar_from_regex("ab"), [AB])
    assert let_through(matcher) == [END, OTHER_END]
    matcher.follow([AB, OTHER_END])
    assert (let_through(matcher), matcher.failure, matcher.may_end) == ([END, OTHER_END], "", True)


def test_where_there_is_no_choice_of_bytes_the_models_own_tokens_are_let_through() -> None:
    """Red when forced text comes in tokens that the model never saw such text in, or not at all because those spell
    something else, as where a tokenizer begins every text with a space."""
    forced = LLMatcher.grammar_from_regex("abc")
    for spelled, first in [([ord("a"), ord("b"), ord("c")], ord("a")), ([ord(" "), AB, ord("c")], AB), ([], AB)]:
        vocabulary = GrammarVocabulary(TOKENS, {END}, (END,), lambda text, told=spelled: told)
        assert let_through(vocabulary.compile(forced).start()) == [first]


def test_what_is_forced_is_known() -> None:
    """Red when it is no longer said, or a choice is called forced."""
    matcher = matcher_after(AMOUNT, [])
    assert matcher.forced_bytes() == b'{"amount":'
    matcher.follow(b'{"amount":')
    assert matcher.forced_bytes() == b""


def test_a_row_of_logits_may_be_longer_or_shorter_than_the_tokenizers_vocabulary() -> None:
    """Red when ids that the tokenizer does not know are let through, or the mask has another length than the row."""
    files = fake_tokenizer_files()
    longer = GrammarVocabulary.of(ModelVocabulary(files), 300)
    mask = longer.compile(LLMatcher.grammar_from_regex("(?s:.*)")).start().state.compute_bitmask()
    assert int.from_bytes(mask, "little") >> 257 == 0
    assert len(mask) >= 300 / 8
    shorter = GrammarVocabulary.of(ModelVocabulary(files), 256)
    with pytest.raises(InvalidGrammar, match="no end-of-sequence token"):
        shorter.compile(AMOUNT)


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        pytest.param("{", "cannot be compiled", id="no grammar"),
        pytest.param("", "cannot be compiled", id="empty"),
        pytest.param(LLMatcher.grammar_from_regex("(a|"), "unclosed group", id="broken"),
        pytest.param(LLMatcher.grammar_from_json_schema({"$ref": "#"}), "No output can be", id="only itself"),
        pytest.param(
            LLMatcher.grammar_from_json_schema({"type": "string", "format": "path"}),
            "path",
            id="not held by the library",
        ),
        pytest.param(LLMatcher.grammar_from_json_schema(WIDE), "too big", id="too much work"),
        pytest.param("x" * (MAX_GRAMMAR_BYTES + 1), "1,048,577 bytes", id="too long"),
        pytest.param("\ud800" * MAX_GRAMMAR_BYTES, "cannot be compiled", id="no Unicode"),
    ],
)
def test_what_cannot_be_held_is_refused_with_a_sentence(grammar: str, sentence: str) -> None:
    """Red when one of them is compiled, raises something else, or is answered with the library's inner state."""
    with pytest.raises(InvalidGrammar, match=sentence) as raised:
        VOCABULARY.compile(grammar)
    assert len(raised.value.message) < 500
    assert "<state>" not in raised.value.message


def test_an_output_that_is_not_of_the_grammar_fails_for_good() -> None:
    """Red when a matcher that lost its way says nothing of it."""
    matcher = matcher_after(AMOUNT, list(b"[1]"))
    assert "satisfy the grammar" in matcher.failure
    matcher.follow(list(b'{"amount":'))
    assert matcher.failure


def test_a_grammar_that_becomes_too_much_work_fails_where_it_does() -> None:
    """It compiles; 29 tokens later there are more states than are allowed. Red when that is a hang or no failure."""
    bomb = LLMatcher.grammar_from_regex("((a{1,100}){1,100}){1,100}")
    matcher = VOCABULARY.compile(bomb).start()
    for count in range(100):
        matcher.follow([ord("a")] * count)
        let_through(matcher)
        if matcher.failure:
            break
    assert 1 < count < 100
    assert "too many" in matcher.failure


def test_a_model_whose_tokens_have_no_bytes_holds_nothing() -> None:
    """Red when masks are made over spellings that are only guessed."""
    vocabulary = GrammarVocabulary(TOKENS, {END}, (END,), refusal="the tokenizer does not say which bytes")
    with pytest.raises(InvalidGrammar, match="does not say which bytes"):
        vocabulary.compile(AMOUNT)
