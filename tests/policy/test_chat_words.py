"""`relevo chat` without terminal and server: what typed lines mean, what a request asks, what may be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.chat.answer import AnswerFacts
from relevo.chat.conversation import Conversation
from relevo.chat.lines import HELP, Command, CommandName, LineJoiner, Message, Unknown, understand
from relevo.chat.screen import filled
from relevo.client.visible_text import visible
from relevo.core.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("  \n ", None),
        ("hello", Message("hello")),
        ("/reset", Command(CommandName.RESET, "")),
        ("/system be brief ", Command(CommandName.SYSTEM, "be brief")),
        ("/quit", Command(CommandName.EXIT, "")),
        ("/etc/passwd", Unknown("/etc/passwd")),
        ("//etc/passwd", Message("/etc/passwd")),
        ("/reset\nis not a command here", Message("/reset\nis not a command here")),
    ],
)
def test_a_line_is_a_message_or_a_command(text: str, meant: object) -> None:
    assert understand(text) == meant


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["one"], "one"),
        (["one \\", "two"], "one \ntwo"),
        (['"""', "one", "", "two", '"""'], "one\n\ntwo"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
    ],
)
def test_lines_are_joined(lines: list[str], text: str) -> None:
    joiner = LineJoiner()
    assert [joiner.feed(line) for line in lines] == [None] * (len(lines) - 1) + [text]
    assert not joiner.is_open


def test_a_dropped_message_leaves_nothing_for_the_next() -> None:
    joiner = LineJoiner()
    joiner.feed('"""')
    joiner.feed("half")
    joiner.drop()
    assert joiner.feed("whole") == "whole"


@given(st.text(st.characters()))
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    shown = visible(text)
    assert not [c for c in shown if (ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode()


def test_what_is_harmless_is_shown_as_it_is() -> None:
    assert visible("größer\t→ 日本\n👍🏽") == "größer\t→ 日本\n👍🏽"


def test_a_setting_is_of_its_kind() -> None:
    conversation = Conversation()
    conversation.set("temperature", "0.7")
    conversation.set("max_tokens", "40")
    assert conversation.settings == {"temperature": 0.7, "max_tokens": 40}
    conversation.set("temperature", "")
    assert "temperature" not in conversation.body("m")
    for name, value in (("temperature", "nan"), ("temperature", "hot"), ("top_k", "1.5"), ("temprature", "1")):
        with pytest.raises(SettingsError, match=name):
            conversation.set(name, value)


def test_a_question_without_an_answer_is_taken_back() -> None:
    conversation = Conversation(system="be brief")
    conversation.ask("one")
    conversation.take("first")
    conversation.ask("two")
    conversation.take("")
    assert [turn["content"] for turn in conversation.body("m")["messages"]] == ["be brief", "one", "first"]
    session = conversation.session_id
    conversation.reset()
    assert conversation.turns == [] and conversation.session_id != session and conversation.system == "be brief"


@pytest.mark.parametrize(
    ("route", "workers"),
    [
        ("", ""),
        ("line interactive: 0 ms | decode unified-0: only one is able", "unified-0"),
        ("decode decode-0: warm: 96 of 99 tokens cached there | prompt prefill-1: fastest", "prefill-1 → decode-0"),
        ("decode decode-0: x | prompt decode-0: it delays nobody", "decode-0"),
        ("decode a-0: x | decode a-1: the first one left", "a-1"),
    ],
)
def test_the_workers_are_read_from_the_route(route: str, workers: str) -> None:
    assert AnswerFacts(route=route).workers == workers


def test_facts_that_are_not_told_are_not_made_up() -> None:
    assert AnswerFacts().told() == []
    known = AnswerFacts(sent_at_ns=1, first_at_ns=84_000_001, last_at_ns=284_000_001, num_output_tokens=11)
    assert known.told() == ["TTFT 84 ms", "11 tokens, 50.0/s"]


def test_everything_fits_into_eighty_columns() -> None:
    assert max(map(len, HELP.splitlines())) <= 80
    assert filled(["a" * 30, "b" * 30, "c" * 30], 80).splitlines() == ["a" * 30 + " · " + "b" * 30, "c" * 30]
