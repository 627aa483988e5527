"""What the driver makes of a run: nothing is said to work that did not."""

from __future__ import annotations

from typing import Any

import pytest
from clients import CLIENTS
from drive import Outcome, table_of, was_continued
from task import AGAIN, FIRST, KILLED

PI = next(client for client in CLIENTS if client.name == "pi")
MUTE = next(client for client in CLIENTS if client.name == "cline")
ONE, OTHER = ("aaaaaaaa", "x-session-affinity"), ("bbbbbbbb", "x-session-affinity")
WORKED = dict.fromkeys((FIRST, AGAIN, KILLED), "")
REQUEST = "0ff272742f6640a9b651d935ec1dc374"


def outcome(
    sessions: dict[str, list[tuple[str, str]]], client: Any = PI, faults: dict[str, str] | None = None
) -> Outcome:
    return Outcome(client, "1", WORKED if faults is None else faults, sessions)


@pytest.mark.parametrize(
    "sessions",
    [
        {FIRST: [ONE, OTHER], AGAIN: [ONE], KILLED: [ONE]},  # two in one run
        {FIRST: [ONE], AGAIN: [OTHER], KILLED: [OTHER]},  # not gone on with
        {FIRST: [("aaaaaaaa", "content")], AGAIN: [("aaaaaaaa", "content")]},  # it sent nothing
        {},
    ],
)
def test_a_session_that_is_not_one_is_not_known(sessions: dict[str, list[tuple[str, str]]]) -> None:
    assert not outcome(sessions).session() and not outcome(sessions).is_good


def test_a_session_is_known_where_every_request_of_every_run_names_it() -> None:
    known = outcome({FIRST: [ONE, ONE], AGAIN: [ONE], KILLED: [ONE]})
    assert known.session() == "`x-session-affinity`" and known.is_good
    mute = outcome({FIRST: [("aaaaaaaa", "content")], AGAIN: [("bbbbbbbb", "content")]}, MUTE)
    assert mute.session() == "sends none"


@pytest.mark.parametrize(
    "faults", [{}, {FIRST: ""}, WORKED | {KILLED: "exit status 1"}, WORKED | {"start": "see above"}]
)
def test_a_round_that_failed_or_was_not_run_is_told(faults: dict[str, str]) -> None:
    told = outcome({FIRST: [ONE]}, faults=faults)
    assert not told.is_good
    row = table_of([told]).splitlines()[-1]
    assert ("**no**" in row) is (KILLED in faults and faults[KILLED] != "")
    assert ("not run" in row) is (KILLED not in faults)


@pytest.mark.parametrize(
    ("after", "is_continued"),
    [
        (f"{REQUEST}: decode on prefill-0: only one is able", True),
        (f"{'1' * 32}: decode on prefill-0: only one is able", False),  # another request
        ("", False),
    ],
)
def test_an_answer_was_continued_if_its_request_got_another_worker(after: str, is_continued: bool) -> None:
    begun = f"debug gateway {REQUEST}: decode on decode-0: only one is able\n"
    assert was_continued(f"{begun}warning gateway decode-0 (epoch 1) is gone: it closed\n{after}") is is_continued
    assert not was_continued(begun + after), "nothing was killed"


def test_names_of_the_table_are_those_of_the_command_line() -> None:
    """Red when a client can only be chosen with quotes."""
    assert all(" " not in client.name for client in CLIENTS)
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)
