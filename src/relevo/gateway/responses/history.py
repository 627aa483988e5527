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

from relevo.core.errors import InvalidRequest, RequestError
from relevo.gateway.answers.store import AnswerStore, StoredAnswer
from relevo.gateway.http.errors import NotFound
from relevo.gateway.responses.json_text import decoded, encoded
from relevo.gateway.responses.schemas import ResponseFields

Items = list[dict[str, Any]]
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-z]+\Z")
REFERENCE = "item_reference"
MAX_REFERRED = 4096  # arbitrary; responses that one request refers to, each a look into the database
MAX_BEFORE_CHARS = 64 * 2**20  # arbitrary; as much as a chain may have


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


def asked_json(fields: ResponseFields, base: str) -> bytes:
    """What is kept of the request: the items that it brings. Raises InvalidRequest."""
    return encoded(input_items(fields.input, base), "input")


def _prefix(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    return {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}.get(str(kind), "msg")


def _typed(item: dict[str, Any]) -> dict[str, Any]:
    without_id = {name: value for name, value in item.items() if name != "id"}
    return without_id if without_id.get("type") or "role" not in without_id else {"type": "message", **without_id}


async def answers_before(store: AnswerStore, tenant: str, fields: ResponseFields) -> Sequence[StoredAnswer]:
    """What the request goes on from, oldest first, and what its references point into.

    Raises PreviousResponseNotFound, LedgerUnavailable, and InvalidRequest for more than is read for one request.
    """
    previous_id = fields.previous_response_id
    chain = [] if previous_id is None else await store.chain(tenant, previous_id)
    if previous_id is not None:
        _check_chain(chain, previous_id)
    found = {answer.answer_id: answer for answer in chain}
    ids = dict.fromkeys(_response_of(str(item.get("id"))) for item in _references(fields.input))
    wanted = [answer_id for answer_id in ids if answer_id and answer_id not in found]
    if len(wanted) > MAX_REFERRED:
        raise InvalidRequest(
            f"'input' refers to items of {len(wanted)} responses, and at most {MAX_REFERRED} are read for one request; "
            "send the items themselves.",
            param="input",
        )
    num_chars = sum(map(_num_chars, chain))
    for answer_id in wanted:
        answer = await store.find(tenant, answer_id)
        if answer is None:
            continue
        found[answer_id] = answer
        num_chars += _num_chars(answer)
        if num_chars > MAX_BEFORE_CHARS:
            raise InvalidRequest(
                f"The responses that 'input' refers to have more than {MAX_BEFORE_CHARS} characters; send what matters "
                "of them as items.",
                param="input",
            )
    return list(found.values())


def _num_chars(answer: StoredAnswer) -> int:
    return len(answer.asked) + len(answer.body)


def conversation(fields: ResponseFields, answers: Sequence[StoredAnswer]) -> Items:
    """The items before those of the request; references in `fields.input` become what they refer to, and those to
    items that come before anyway nothing. `answers`: of `answers_before`. Raises NotFound, InvalidRequest."""
    before: Items = []
    known: dict[str, dict[str, Any]] = {}
    chained = _chain_of(answers, fields.previous_response_id)
    for answer in answers:
        items: Items = [*decoded(answer.asked), *decoded(answer.body)["output"]]
        known |= {item["id"]: item for item in items}
        before += items if answer.answer_id in chained else []
    if isinstance(fields.input, list):
        references = {id(item) for item in _references(fields.input)}
        said = {item["id"] for item in before}
        resolved: Items = []
        for given in fields.input:
            if id(given) not in references:
                resolved.append(given)
                continue
            item = _resolved(given, known)
            if item["id"] not in said:
                said.add(item["id"])
                resolved.append(item)
        fields.input = resolved
    return before


def stored(base: str, tenant: str, fields: ResponseFields, asked: bytes, response: Mapping[str, Any]) -> StoredAnswer:
    """`asked`: of `asked_json`."""
    return StoredAnswer(
        answer_id=response_id(base),
        tenant=tenant,
        previous_id=fields.previous_response_id or "",
        asked=asked.decode(),
        body=orjson.dumps(response).decode(),
    )


def _chain_of(answers: Sequence[StoredAnswer], last_id: str | None) -> frozenset[str]:
    by_id = {answer.answer_id: answer for answer in answers}
    found: list[str] = []
    answer_id = last_id or ""
    while answer_id in by_id:
        found.append(answer_id)
        answer_id = by_id[answer_id].previous_id
    return frozenset(found)


def _response_of(item_id: str) -> str:
    """Empty if it is no id that was made here."""
    found = _ITEM_ID.match(item_id)
    return response_id(found.group(1)) if found else ""


def _references(given: str | Items | None) -> Items:
    items = given if isinstance(given, list) else []
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


def _resolved(item: Mapping[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    item_id = item.get("id")
    if not isinstance(item_id, str):
        raise InvalidRequest("An item reference in 'input' must have an 'id' that is a string.", param="input")
    if item_id not in known:
        raise NotFound(
            f"Item with id '{item_id[:200]}' not found: only items of stored responses can be referred to.",
            param="input",
        )
    return known[item_id]
