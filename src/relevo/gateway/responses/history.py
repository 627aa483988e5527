"""What of a conversation is kept: each response with the items that it answered. The chained items are those that the
client would have written out; instructions are each turn's own.

Ids of items are made of their response's, so an item can be found by its id alone.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from relevo.core.errors import RequestError
from relevo.gateway.answers.store import AnswerStore, StoredAnswer
from relevo.gateway.http.errors import NotFound
from relevo.gateway.responses.schemas import ResponseFields

Items = list[dict[str, Any]]
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-z]+\Z")
REFERENCE = "item_reference"


class PreviousResponseNotFound(RequestError):
    code = "previous_response_not_found"


def new_base() -> str:
    """What the ids of a response and of its items have in common."""
    return uuid.uuid4().hex


def response_id(base: str) -> str:
    return f"resp_{base}"


def input_items(given: str | Items | None, base: str) -> Items:
    """What a request brings, as items that have ids."""
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [
        item if isinstance(item.get("id"), str) else {"id": f"{_prefix(item)}_{base}in{index:02x}", **_typed(item)}
        for index, item in enumerate(given or ())
    ]


def _prefix(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(str(kind), "msg")


def _typed(item: dict[str, Any]) -> dict[str, Any]:
    without_id = {name: value for name, value in item.items() if name != "id"}
    return without_id if without_id.get("type") or "role" not in without_id else {"type": "message", **without_id}


def needs_history(fields: ResponseFields) -> bool:
    return fields.previous_response_id is not None or bool(_references(fields))


async def with_history(store: AnswerStore, tenant: str, fields: ResponseFields) -> tuple[Items, int]:
    """The items before those of the request, and how many characters were read; references in `fields.input` become
    what they refer to.

    Raises PreviousResponseNotFound, NotFound, LedgerUnavailable.
    """
    before: Items = []
    num_chars = 0
    if fields.previous_response_id is not None:
        chain = await store.chain(tenant, fields.previous_response_id)
        _check_chain(chain, fields.previous_response_id)
        for answer in chain:
            num_chars += len(answer.body)
            kept = orjson.loads(answer.body)
            before += [*kept["input"], *kept["response"]["output"]]
    if isinstance(fields.input, list):
        known = {item["id"]: item for item in before if isinstance(item.get("id"), str)}
        fields.input = [await _resolved(store, tenant, item, known) for item in fields.input]
        chained = {id(item) for item in before}
        fields.input = [item for item in fields.input if id(item) not in chained]  # said already
    return before, num_chars


def stored(base: str, tenant: str, fields: ResponseFields, response: Mapping[str, Any]) -> StoredAnswer:
    kept = {"response": response, "input": input_items(fields.input, base)}
    return StoredAnswer(
        answer_id=response_id(base),
        tenant=tenant,
        previous_id=fields.previous_response_id or "",
        body=orjson.dumps(kept).decode(),
    )


def _references(fields: ResponseFields) -> list[dict[str, Any]]:
    items = fields.input if isinstance(fields.input, list) else []
    return [item for item in items if item.get("type") == REFERENCE or ("type" not in item and set(item) == {"id"})]


def _check_chain(chain: Sequence[StoredAnswer], previous_id: str) -> None:
    if not chain:
        raise PreviousResponseNotFound(
            f"Previous response with id '{previous_id[:200]}' not found: it was not stored, was deleted, or its time "
            "is over; send the conversation as 'input'.",
            param="previous_response_id",
        )
    if chain[0].previous_id:
        raise PreviousResponseNotFound(
            f"The response '{chain[0].previous_id}', from which '{previous_id[:200]}' goes on, is not there any more; "
            "send the conversation as 'input'.",
            param="previous_response_id",
        )


async def _resolved(
    store: AnswerStore, tenant: str, item: dict[str, Any], known: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    if item.get("type", REFERENCE) != REFERENCE or set(item) - {"type", "id"}:
        return item
    item_id = str(item.get("id"))
    if item_id in known:
        return known[item_id]
    found = _ITEM_ID.match(item_id)
    answer = await store.find(tenant, response_id(found.group(1))) if found else None
    if answer is not None:
        kept = orjson.loads(answer.body)
        for candidate in (*kept["response"]["output"], *kept["input"]):
            if candidate.get("id") == item_id:
                return dict(candidate)
    raise NotFound(
        f"Item with id '{item_id[:200]}' not found: only items of stored responses can be referred to.", param="input"
    )
