"""Stop strings end a text at the same place however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.core.errors import InvalidRequest
from relevo.gateway.text.stop_strings import StopStringMatcher, StopStrings


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
    matcher = StopStringMatcher(StopStrings(stops), include_stop_str_in_output=include)
    assert run(matcher, pieces) == naive("".join(pieces), stops, include)


@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS.filter(bool), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_holds_back_only_what_could_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    """After every piece: emitted + held is the text, and held is the longest tail that begins a stop string."""
    matcher, emitted, text = StopStringMatcher(StopStrings(stops)), "", ""
    for piece in pieces:
        outcome = matcher.feed(piece)
        if outcome.stopped:
            return
        text, emitted = text + piece, emitted + outcome.text
        tails = [text[i:] for i in range(len(text)) if any(stop.startswith(text[i:]) for stop in stops)]
        assert emitted + (tails[0] if tails else "") == text


def test_a_stop_across_three_tokens() -> None:
    matcher = StopStringMatcher(StopStrings(["\n\nUser:"]))
    assert [matcher.feed(piece).text for piece in ("Hi\n", "\nUs")] == ["Hi", ""]
    outcome = matcher.feed("er: more")
    assert (outcome.text, outcome.stopped, outcome.stop) == ("", True, "\n\nUser:")


def test_nothing_follows_a_stop() -> None:
    matcher = StopStringMatcher(StopStrings(["END"]))
    assert matcher.feed("a END b").text == "a "
    assert (matcher.feed("more").text, matcher.feed("more").stop, matcher.flush()) == ("", "END", "")


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopStringMatcher(StopStrings([]))
    assert (matcher.feed("abc").text, matcher.feed("").text, matcher.flush()) == ("abc", "", "")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        StopStrings(["x", ""])
    assert refusal.value.param == "stop"


class CountedStops(StopStrings):
    """Counts the looks at a state."""

    def __init__(self, stops: list[str]) -> None:
        super().__init__(stops)
        self.num_looks = 0
        counted = self

        class Counted(dict[str, int]):
            def __contains__(self, char: object) -> bool:
                counted.num_looks += 1
                return super().__contains__(char)

        self._next = [Counted(targets) for targets in self._next]


@pytest.mark.parametrize("num_stops", [1, 64])
def test_the_work_per_character_does_not_grow_with_the_stop_strings(num_stops: int) -> None:
    """Red if a character is compared with every stop string, or with every length of one."""
    stops = CountedStops(["a" * 1000 + chr(ord("b") + i) for i in range(num_stops)])
    matcher = StopStringMatcher(stops)
    text = ("a" * 990 + "\n") * 5
    for char in text:
        matcher.feed(char)
    assert stops.num_looks <= 3 * len(text)
