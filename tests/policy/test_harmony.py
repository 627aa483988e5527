"""Harmony's messages: the recipient decides, names end at control tokens, and nothing that a model writes raises."""

from __future__ import annotations

import pytest
from dialect_outputs import Joined, asked, cuts, joined, mutated

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.dialects.harmony import CONTROL, Harmony
from relevo.gateway.text.parts import Part

TAIL = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
CALL = '<|start|>assistant<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Brest"}<|call|>'
OUTPUT = f"<|channel|>analysis<|message|>I should look.<|end|>{CALL}"
TOKEN = SampledToken(TokenId(0))


def read(pieces: list[str], *, is_cut: bool = False, tail: str = TAIL, **changed: bool) -> tuple[Joined, Harmony]:
    parser = Harmony(asked(prompt_tail=tail, **changed))
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece, (TOKEN,))
    parts += parser.flush(is_cut=is_cut)
    return joined(parts), parser


def read_alike(output: str, *, is_cut: bool = False, tail: str = TAIL) -> Joined:
    whole, *others = (read(pieces, is_cut=is_cut, tail=tail)[0] for pieces in cuts(output, 30))
    assert all(other == whole for other in others), output
    return whole


def by_tokens(output: str) -> list[str]:
    """As the model's tokens are: control tokens whole, words else."""
    pieces, text = [], output
    while text:
        mark = next((mark for mark in CONTROL if text.startswith(mark)), "")
        end = len(mark) or min((at for at in (text.find(" ", 1), text.find("<|")) if at > 0), default=len(text))
        pieces.append(text[:end])
        text = text[end:]
    return pieces


def test_reasoning_and_a_call_come_of_one_answer() -> None:
    """Red when a call on the commentary channel is shown as text, or a thought as content."""
    assert read_alike(OUTPUT) == ("", "I should look.", [("tide", '{"port":"Brest"}')])


@pytest.mark.parametrize("end", range(len(OUTPUT)))
def test_a_limit_anywhere_shows_no_unfinished_call_as_finished(end: int) -> None:
    """Red when a cut call is closed or dropped, or when a thought is lost with it."""
    text, reasoning, calls = read_alike(OUTPUT[:end], is_cut=True)
    thought = OUTPUT[OUTPUT.index("I should") : max(OUTPUT.index("I should"), min(end, OUTPUT.index("<|end|>")))]
    assert reasoning.startswith(thought) and "Brest" not in text and "look" not in text
    begun = OUTPUT.index('{"port') + 1
    assert bool(calls) is (end >= begun)
    if calls:
        assert calls[0][0] == "tide" and '{"port":"Brest"}'.startswith(calls[0][1])
        assert read([OUTPUT[:end]], is_cut=True)[1].is_broken_off is (calls[0][1] != '{"port":"Brest"}')


def test_thoughts_are_counted_by_tokens_with_the_marks_around_them() -> None:
    """Red when the count is of characters, or leaves the header or the end of a thought out."""
    pieces = by_tokens(OUTPUT)
    num_thought = pieces.index("<|end|>") + 1
    assert pieces[:num_thought] == ["<|channel|>", "analysis", "<|message|>", "I", " should", " look.", "<|end|>"]
    assert read(pieces)[1].num_reasoning_tokens == num_thought
    assert read(by_tokens(CALL))[1].num_reasoning_tokens == 0


def test_an_answer_goes_on_where_its_prompt_ends() -> None:
    """Red when a header that the prompt began is read anew, or a message that it began is taken for text."""
    assert read_alike("<|channel|>final<|message|>x", tail=TAIL) == ("x", "", [])
    assert read_alike("hm<|end|>x", tail=f"{TAIL}<|channel|>analysis<|message|>") == ("x", "hm", [])
    assert read_alike("x<|return|>", tail=f"{TAIL}<|channel|>final<|message|>") == ("x", "", [])
    assert read_alike(" to=functions.ping<|channel|>commentary<|message|>{}<|call|>", tail=TAIL)[2] == [("ping", "{}")]


def test_one_call_completes_an_answer_that_may_have_no_more() -> None:
    """Red when an answer goes on after its only call."""
    (_, _, calls), parser = read([CALL + CALL], is_parallel=False)
    assert parser.is_complete and len(calls) == 1 and not parser.is_broken_off


def test_without_tools_a_message_to_one_is_content() -> None:
    """Red when a call is told to a client that declared no tools."""
    parser = Harmony(asked(tools=()))
    assert joined([*parser.feed(CALL, ()), *parser.flush(is_cut=False)]) == ('{"port":"Brest"}', "", [])


def test_reasoning_that_is_not_told_apart_is_content() -> None:
    """Red when a server without a reasoning parser loses thoughts."""
    parser = Harmony(asked(), tells_reasoning=False)
    found = joined([*parser.feed(OUTPUT, ()), *parser.flush(is_cut=False)])
    assert found == ("I should look.", "", [("tide", '{"port":"Brest"}')])


@pytest.mark.parametrize("seed", range(150))
def test_broken_outputs_raise_nothing_and_do_not_depend_on_the_cuts(seed: int) -> None:
    """Red when an odd output raises or is read differently in pieces."""
    for is_cut in (False, True):
        read_alike(
            mutated(f"{OUTPUT}<|start|>assistant<|channel|>final<|message|>So: it is.<|return|>", seed), is_cut=is_cut
        )


def test_a_header_without_end_is_text_at_last() -> None:
    """Red when text behind a channel that lacks its mark is held for ever."""
    text = "word " * 300
    assert read_alike(f"<|channel|>final {text}")[0].replace(" ", "") == text.replace(" ", "")
