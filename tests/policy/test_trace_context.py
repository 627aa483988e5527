"""What is continued of a client's trace. Cases follow the rules of W3C Trace Context Level 2, section by section."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.policy.tracing.trace_context import (
    MAX_STATE_CHARS,
    MAX_STATE_MEMBERS,
    TraceContext,
    context_in,
    context_of,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()


def test_a_parent_is_read() -> None:
    assert context_of([PARENT]) == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled=True)
    assert context_of([b" \t" + PARENT + b" "]) == context_of([PARENT]), "blanks around a value are no part of it"


@pytest.mark.parametrize(
    ("flags", "is_sampled", "is_random"),
    [("00", False, False), ("01", True, False), ("02", False, True), ("03", True, True), ("ff", True, True)],
)
def test_flags_without_a_meaning_are_not_looked_at_nor_passed_on(flags: str, is_sampled: bool, is_random: bool) -> None:
    found = context_of([f"00-{TRACE}-{SPAN}-{flags}".encode()])
    assert found is not None
    assert (found.is_sampled, found.is_random) == (is_sampled, is_random)
    assert found.told.endswith(f"-{is_sampled + 2 * is_random:02x}")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        PARENT[:-1],
        PARENT + b"0",
        PARENT + b"-",  # of version 00 nothing follows
        PARENT + b"-what-follows",
        PARENT.upper(),
        PARENT.replace(b"-", b"_"),
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE[:-1]}g-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-1".encode(),
        f"0x-{TRACE}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01".encode(),
        PARENT + b"\n",
        b"01-" + PARENT[3:] + b"." + b"x",  # what follows in later versions begins with a dash
        b"01-" + PARENT[3:] + b"-" + b"x" * 1000,
        "０".encode() + PARENT[1:],
    ],
)
def test_what_breaks_a_rule_is_as_if_it_were_not_there(value: bytes) -> None:
    assert context_of([value]) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    known = context_of([PARENT])
    assert context_of([b"01-" + PARENT[3:]]) == known
    assert context_of([b"cc-" + PARENT[3:] + b"-what-the-future-brings"]) == known


def test_two_parents_are_none() -> None:
    """Red when the first or the last of them is taken: which is right cannot be known."""
    assert context_of([PARENT, PARENT]) is None


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([b"foo=1,bar=2"], "foo=1,bar=2"),
        ([b"foo=1", b"bar=2"], "foo=1,bar=2"),
        ([b"foo=1 \t ,  \t bar=2"], "foo=1,bar=2"),
        ([b"foo=1,", b"", b" ,bar=2"], "foo=1,bar=2"),
        ([b"foo@bar=1,0a/b*c-d_e=2"], "foo@bar=1,0a/b*c-d_e=2"),
        ([b"foo=a b:c~"], "foo=a b:c~"),
        ([b""], ""),
        ([b"foo=1,foo=2"], ""),  # one entry of each key
        ([b"foo"], ""),
        ([b"foo="], ""),
        ([b"=1"], ""),
        ([b"FOO=1"], ""),
        ([b"foo =1"], ""),
        ([b"foo=1=2"], ""),
        ([b"foo=\x01"], ""),
        ([b"foo=\xe9"], ""),
        ([b"_foo=1"], ""),
    ],
)
def test_state_is_passed_on_whole_or_not_at_all(values: list[bytes], state: str) -> None:
    found = context_of([PARENT], values)
    assert found is not None and found.state == state


def test_state_has_bounds() -> None:
    fits = b",".join(b"k%d=v" % number for number in range(MAX_STATE_MEMBERS))
    assert context_of([PARENT], [fits]).state == fits.decode()  # type: ignore[union-attr]
    assert context_of([PARENT], [fits + b",one=more"]).state == ""  # type: ignore[union-attr]
    longest = b"k=" + b"v" * 256 + b",l=" + b"v" * (MAX_STATE_CHARS - 258 - 3)
    assert len(longest) == MAX_STATE_CHARS
    assert context_of([PARENT], [longest]).state == longest.decode()  # type: ignore[union-attr]
    assert context_of([PARENT], [longest + b"v"]).state == ""  # type: ignore[union-attr]


def test_state_without_a_parent_is_nothing() -> None:
    assert context_in([(b"tracestate", b"foo=1"), (b"baggage", b"session.id=1")]) is None
    assert context_in([(b"tracestate", b"foo=1"), (b"traceparent", PARENT)]).state == "foo=1"  # type: ignore[union-attr]


class Unread(bytes):
    """Red when it is looked into."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise AssertionError("a header beyond its bound was read")


def test_a_megabyte_of_headers_is_not_read() -> None:
    huge = [(b"tracestate", Unread(b"k=" + b"v" * 2**10))] * 2**10
    assert context_in([(b"traceparent", Unread(b"00-" + b"0" * 2**20)), *huge]) is None
    found = context_in([(b"traceparent", PARENT), *huge])
    assert found is not None and found.state == ""


@given(trace=st.integers(1, 2**128 - 1), span=st.integers(1, 2**64 - 1), sampled=st.booleans(), random=st.booleans())
def test_what_is_told_is_read_again(trace: int, span: int, sampled: bool, random: bool) -> None:
    context = TraceContext(trace, span, sampled, random)
    assert context_of([context.told.encode()]) == context


@given(parents=st.lists(st.binary(max_size=80), max_size=3), states=st.lists(st.binary(max_size=80), max_size=3))
def test_whatever_comes_is_read_or_left(parents: list[bytes], states: list[bytes]) -> None:
    found = context_of(parents, states)
    assert found is None or context_of([found.told.encode()], [found.state.encode()]) == found
