"""Patterns of schemas mean what ECMA-262 says, as far as they are taken; the rest is refused by its name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.gateway.held.formats import FORMATS, format_node
from relevo.gateway.held.patterns.matching import matches
from relevo.gateway.held.patterns.nodes import json_literal, written
from relevo.gateway.held.patterns.reader import BadPattern, read_pattern
from relevo.gateway.held.patterns.whole import whole_pattern

PATTERNS = [
    "a",
    "^a",
    "a$",
    "^a$",
    "^a|b$",
    "^(a|b)$",
    "^(?:a|b)+c?$",
    "(^a|b)c",
    "a(b|c$)",
    "^[a-c]{2,3}$",
    "^[^a-c]*$",
    "a.c",
    "^\\d{1,2}$",
    "^\\w+$",
    "^\\s*$",
    "^\\S+$",
    "\\.",
    "^a{0}$",
    "^(a{2}){2}$",
    "",
    "^$",
    "x*",
    "^(?<n>a)b$",
    "[\\d-]",
    "^[-a]+$",
    "^a\\/b$",
    "\\u0041",
    "\\x41",
    "^[\\]\\\\]$",
    "(a|)b",
    "^(|a)$",
    "a+?b",
    "^((a|b)(c|d))*$",
    "^\\n$",
    '["\\\\]',
]
TEXTS = st.text(alphabet='abcdxAn1 .-_/\\"]\n', max_size=8)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=TEXTS)
def test_a_text_matches_here_as_it_does_elsewhere(pattern: str, text: str) -> None:
    """Judged by Python, whose `$` also matches before a last line end."""
    judge = re.compile(pattern.replace("(?<n>", "(?P<n>").replace("$", "\\Z"))
    node = whole_pattern(read_pattern(pattern))
    assert matches(node, text) is (judge.search(text) is not None)
    inside = re.compile(
        re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", written(node, in_json=True))
    )
    assert (inside.fullmatch(json_literal(text)[1:-1]) is not None) is matches(node, text), "as a lexer reads it"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)", "look-ahead"),
        ("(?!a)", "negative look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "negative look-behind"),
        ("(a)\\1", "backreference"),
        ("\\k<n>", "backreference"),
        ("\\bfoo", "word boundary"),
        ("\\p{L}", "Unicode property"),
        ("a^b", "anchor"),
        ("(a$)*", "anchor"),
        ("(?i)a", "(?i"),
        ("(a", "not closed"),
        ("a)", "unbalanced"),
        ("[a", "too early"),
        ("*a", "nothing to repeat"),
        ("a{2,1}", "out of order"),
        ("a{9999999}", "larger than"),
        ("[b-a]", "out of order"),
        ("a++", "possessive"),
        ("a{x", "no count"),
        ("\\q", "no escape"),
        ("a" * 10_001, "10000"),
        ("(" * 60 + ")" * 60, "deeper"),
        ("^[^\\s\\S]$", "no text"),
        ("((a{1,100}){1,100}){1,100}", "too much work"),
        ("\\ud800", "no character"),
        ("a|" * 1001, "alternatives"),
    ],
)
def test_what_cannot_be_held_is_named(pattern: str, said: str) -> None:
    with pytest.raises(BadPattern) as refused:
        whole_pattern(read_pattern(pattern))
    assert said in str(refused.value)


def test_matching_takes_no_time_that_a_pattern_chooses() -> None:
    """Red when it backtracks: these would not end."""
    for pattern, text in (("^(a|a)*$", "a" * 200 + "b"), ("^(a*)*$", "a" * 200 + "b"), ("^(a?){50}a{50}$", "a" * 50)):
        matches(whole_pattern(read_pattern(pattern)), text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31", "0000-01-01"]),
        (
            "date-time",
            ["2024-01-01T00:00:00Z", "2024-01-01T23:59:59.25+05:30"],
            ["2024-01-01 00:00:00Z", "2024-01-01T24:00:00Z"],
        ),
        ("time", ["12:30:00Z"], ["12:30", "25:00:00Z"]),
        ("duration", ["P1DT2H", "P2W", "PT5M"], ["P", "PT", "1D", "P1W2D"]),
        ("ipv4", ["0.0.0.0", "255.1.2.3"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
        (
            "ipv6",
            ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "fe80::1:2"],
            ["1:2:3:4:5:6:7", ":1", "1::2::3", "12345::"],
        ),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        ("email", ["a.b@c.de"], ["a@", "@b.c", "a b@c.de"]),
        ("uri", ["https://a.b/c?d=1#e", "urn:isbn:1", "mailto:a@b.c"], ["/a", "a b:c", "http://"]),
        ("hostname", ["a.b-c.de"], ["-a", "a..b"]),
        ("json-pointer", ["", "/a~1b/0"], ["a", "/~2"]),
        ("byte", ["", "YQ==", "YWI=", "YWJj"], ["YQ", "Y==="]),
    ],
)
def test_formats_hold_what_their_standard_says(name: str, good: list[str], bad: list[str]) -> None:
    node = format_node(name)
    assert [text for text in good if not matches(node, text)] == []
    assert [text for text in bad if matches(node, text)] == []


def test_every_format_can_be_made() -> None:
    assert all(format_node(name) is not None for name in FORMATS)
