"""Models that have lost their way write blanks without end: they cost no more than they are long, and say the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from family_outputs import TOOLS, Family, Output, parser_of, read
from test_dialects import ROWS

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.dialects.composed import Composed
from relevo.gateway.text.output_parser import ParserInput
from relevo.gateway.text.parts import Part

TOKEN = (SampledToken(TokenId(0)),)
NUM_BLANKS = 10_000


class HeldText:
    """Calls that hold all their text back and look at it again whenever more comes. Implements ToolCallParser."""

    num_closed_calls = 0
    is_in_call = False

    def __init__(self) -> None:
        self.text = ""
        self.num_looked_at = 0

    def feed(self, text: str) -> Sequence[Part]:
        self.text += text
        self.num_looked_at += len(self.text)
        return ()

    def flush(self, *, is_cut: bool) -> Sequence[Part]:
        return ()


@pytest.mark.parametrize("blanks", [" ", "\n", "\t ", "  \r\n"])
def test_a_run_of_blanks_is_read_in_pieces_that_grow(blanks: str) -> None:
    """Red if what holds blanks back looked at all of them with every token: 30,000 took half a minute."""
    calls = HeldText()
    parser = Composed(ParserInput((), tools=TOOLS), None, calls, ())
    for text in ("a", *([blanks] * NUM_BLANKS), "b"):
        parser.feed(text, TOKEN)
    parser.flush(is_cut=True)
    assert calls.text == "a" + blanks * NUM_BLANKS + "b"
    assert calls.num_looked_at < 10 * len(calls.text)


def test_blanks_that_end_an_answer_are_not_lost() -> None:
    calls = HeldText()
    parser = Composed(ParserInput((), tools=TOOLS), None, calls, ())
    for _ in range(1000):
        parser.feed(" ", TOKEN)
    parser.flush(is_cut=True)
    assert calls.text == " " * 1000


@pytest.mark.parametrize(("family", "output"), ROWS)
def test_long_runs_of_blanks_mean_the_same_however_they_come(family: Family, output: Output) -> None:
    """Red if blanks that are held were left out, or told behind what follows them."""
    rng = random.Random(output.written)
    for _ in range(12):
        place = rng.randrange(len(output.written) + 1)
        run = rng.choice((" ", "\n", " \n", "\t")) * rng.randrange(100, 400)
        text = output.written[:place] + run + output.written[place:]
        whole = read(parser_of(family.tools, family.reasoning), [text])
        assert read(parser_of(family.tools, family.reasoning), list(text)) == whole


def test_tokens_of_blanks_in_a_thought_are_counted_as_its_own() -> None:
    """Red if those that are held were counted twice or not, or tokens without text among them as decided."""
    text = ["<think>", *([" "] * 500), "", "</think>", "so", *([" "] * 500), "", "it is"]
    found = read(parser_of("hermes", "qwen3"), text)
    assert (found.num_reasoning_tokens, found.content) == (503, "so" + " " * 500 + "it is")
