"""What a long conversation costs: no step of fitting it to a template takes longer the more there was before."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.gateway.text.call_ids import CallIdForm, pair_calls
from relevo.gateway.text.tool_emulation import with_emulated_tools
from relevo.gateway.text.turns import TurnForm, fit_turns

NUM = 500


class CountedId:
    """An id of a client's own kind; tells how often it was compared."""

    num_compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        CountedId.num_compared += 1
        return isinstance(other, CountedId) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CountedId({self.number})"


class CountedText(str):
    """Tells how many characters were copied to add to it."""

    num_copied = 0

    def __add__(self, other: str) -> CountedText:
        CountedText.num_copied += len(self) + len(other)
        return CountedText(str(self) + other)


class CountedList(list[Any]):
    num_copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        CountedList.num_copied += len(found) if isinstance(key, slice) else 0
        return found


def made_call(call_id: Any, name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": {}}}


def test_a_result_finds_its_call_without_a_look_at_all_others() -> None:
    """Red if each of many results were compared with every call that waits."""
    CountedId.num_compared = 0
    calls = [made_call(CountedId(number), f"f{number}") for number in range(NUM)]
    results = [{"role": "tool", "tool_call_id": CountedId(number)} for number in reversed(range(NUM))]
    paired = pair_calls([{"role": "assistant", "tool_calls": calls}, *results], CallIdForm.ANY)
    assert [message["name"] for message in paired[1:]] == [f"f{number}" for number in reversed(range(NUM))]
    assert CountedId.num_compared <= 4 * NUM


@pytest.mark.parametrize(
    ("called", "answered", "names"),
    [
        (["a", "b", "a"], ["a", "a", "b"], ["0", "2", "1"]),
        (["a", "b"], ["x", "a"], ["0", "1"]),
        (["a", "b"], ["b", "x", "a"], ["1", "0", "unknown"]),
        ([None, "None"], ["None", None], ["1", "0"]),
        (["a"], ["a", "a"], ["0", "unknown"]),
    ],
)
def test_a_result_belongs_to_the_oldest_call_of_its_id_and_else_to_the_oldest(
    called: list[Any], answered: list[Any], names: list[str]
) -> None:
    calls = [made_call(call_id, str(number)) for number, call_id in enumerate(called)]
    results = [{"role": "tool", "tool_call_id": call_id} for call_id in answered]
    paired = pair_calls([{"role": "assistant", "tool_calls": calls}, *results], CallIdForm.COUNTED)
    found = [message["tool_call_id"].removeprefix("functions.").partition(":")[0] for message in paired[1:]]
    assert found == names


@pytest.mark.parametrize("role", ["user", "system"])
def test_texts_in_a_row_are_joined_at_once(role: str) -> None:
    """Red if each were added to all before it."""
    CountedText.num_copied = 0
    form = TurnForm(takes_repeated_roles=False, takes_late_system=False)
    (joined,) = fit_turns([{"role": role, "content": CountedText("ab")} for _ in range(NUM)], form)
    assert joined["content"] == "\n\n".join(["ab"] * NUM)
    assert CountedText.num_copied <= 10 * NUM


def test_texts_and_parts_in_a_row_are_parts_of_one_message() -> None:
    contents: list[Any] = ["a", "", [{"type": "text", "text": "b"}], None, "c"]
    messages = [{"role": "user", "content": content} for content in contents]
    (joined,) = fit_turns(messages, TurnForm(takes_repeated_roles=False))
    assert [part["text"] for part in joined["content"]] == ["a", "b", "c"]


@pytest.mark.parametrize("first", ["system", "user"])
def test_which_system_texts_lead_is_found_once(first: str) -> None:
    """Red if all messages before each were looked at."""
    CountedList.num_copied = 0
    rest = [{"role": "system", "content": "s"} for _ in range(NUM)]
    messages = CountedList([{"role": first, "content": "f"}, *rest])
    (joined,) = fit_turns(messages, TurnForm(takes_late_system=False))
    assert (joined["role"], joined["content"][:4]) == (first, "f\n\ns")
    assert CountedList.num_copied <= 4 * NUM


def test_a_late_system_text_is_the_users_and_a_leading_one_is_not() -> None:
    roles = ["system", "system", "user", "assistant", "system"]
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
    fitted = fit_turns(messages, TurnForm(takes_late_system=False))
    assert [(message["role"], message["content"]) for message in fitted] == [
        ("system", "0\n\n1"),
        ("user", "2"),
        ("assistant", "3"),
        ("user", "4"),
    ]


def test_many_calls_of_one_message_are_told_at_once() -> None:
    """Red if each were added to the text of all before it."""
    CountedText.num_copied = 0
    message = {"role": "assistant", "content": CountedText("so"), "tool_calls": [made_call("a")] * NUM}
    (told,) = with_emulated_tools([message], [])
    assert told["content"].count("<tool_call>\n") == NUM and told["content"].startswith("so\n<tool_call>")
    assert CountedText.num_copied <= 4 * len(told["content"])
