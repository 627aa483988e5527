"""Stop strings end a text at the same place however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.errors import InvalidRequest
from relevo.gateway.stop_strings import StopStringMatcher


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Look at every prefix, shortest first, until one ends with a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[:end] if include else text[: end - len(longest)], longest
    return text, None


def run(matcher: StopStringMatcher, pieces: list[str]) -> tuple[str, str | None]:
    text = ""
    for piece in pieces:
        outcome = matcher.feed(piece)
        text += outcome.text
        if outcome.stopped:
            return text, outcome.stop
    return text + matcher.flush(), None


LETTERS = st.text("ab\n中", max_size=4)


@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS.filter(bool), max_size=4), st.booleans())
@settings(max_examples=500, deadline=None)
def test_equals_the_naive_search(pieces: list[str], stops: list[str], include: bool) -> None:
    matcher = StopStringMatcher(stops, include_stop_str_in_output=include)
    assert run(matcher, pieces) == naive("".join(pieces), stops, include)


@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS.filter(bool), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_holds_back_only_what_could_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    """After every piece: emitted + held is the text, and held is the longest tail that begins a stop string."""
    matcher, emitted, text = StopStringMatcher(stops), "", ""
    for piece in pieces:
        outcome = matcher.feed(piece)
        if outcome.stopped:
            return
        text, emitted = text + piece, emitted + outcome.text
        tails = [text[i:] for i in range(len(text)) if any(stop.startswith(text[i:]) for stop in stops)]
        assert emitted + (tails[0] if tails else "") == text


def test_a_stop_across_three_tokens() -> None:
    matcher = StopStringMatcher(["\n\nUser:"])
    assert [matcher.feed(piece).text for piece in ("Hi\n", "\nUs")] == ["Hi", ""]
    outcome = matcher.feed("er: more")
    assert (outcome.text, outcome.stopped, outcome.stop) == ("", True, "\n\nUser:")


def test_nothing_follows_a_stop() -> None:
    matcher = StopStringMatcher(["END"])
    assert matcher.feed("a END b").text == "a "
    assert (matcher.feed("more").text, matcher.feed("more").stop, matcher.flush()) == ("", "END", "")


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopStringMatcher([])
    assert (matcher.feed("abc").text, matcher.feed("").text, matcher.flush()) == ("abc", "", "")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        StopStringMatcher(["x", ""])
    assert refusal.value.param == "stop"
