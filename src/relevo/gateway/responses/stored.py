"""Responses that were kept: shown again, listed by their input, deleted. None of them can be cancelled: each has ended.

Source: OpenAI API reference, "Responses".
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from relevo.core.errors import InvalidRequest
from relevo.gateway.answers.store import StoredAnswer
from relevo.gateway.http.call import Call
from relevo.gateway.http.errors import NotFound, UnknownPath
from relevo.gateway.http.replies import json_response
from relevo.gateway.responses.json_text import decoded, encoded

_INPUT_ITEMS = "input_items"
_MOST_ITEMS = 100  # OpenAI's bound of `limit`
_USUAL_ITEMS = 20


async def show(call: Call) -> Response:
    """GET /v1/responses/ID and /v1/responses/ID/input_items."""
    answer_id, _, rest = call.path_rest.partition("/")
    if rest not in ("", _INPUT_ITEMS):
        raise UnknownPath(f"There is nothing at {call.request.url.path}.")
    if call.request.query_params.get("stream") == "true":
        raise InvalidRequest("A stored response is not streamed again; ask for it without 'stream'.", param="stream")
    answer = await _found(call, answer_id)
    if not rest:
        return Response(answer.body, media_type="application/json")
    return await call.context.text_work.run(len(answer.asked), lambda: _page(call, answer), call.tenant)


async def delete(call: Call) -> Response:
    """DELETE /v1/responses/ID."""
    answer_id = call.path_rest
    if not await call.context.answers.forget(call.tenant, answer_id):
        raise _not_there(answer_id)
    return json_response({"id": answer_id, "object": "response", "deleted": True})


async def cancel(call: Call) -> Response:
    """POST /v1/responses/ID/cancel: of no use for any, and said so."""
    answer_id, _, rest = call.path_rest.partition("/")
    if rest != "cancel":
        raise UnknownPath(f"There is nothing at {call.request.url.path}.")
    await _found(call, answer_id)
    raise InvalidRequest(
        f"The response '{answer_id[:200]}' has ended; one that is still made is cancelled by closing its connection.",
        param="response_id",
    )


async def compact(call: Call) -> Response:
    raise UnknownPath("Conversations are not compacted here; summarise one with a request of your own.")


async def _found(call: Call, answer_id: str) -> StoredAnswer:
    answer = await call.context.answers.find(call.tenant, answer_id)
    if answer is None:
        raise _not_there(answer_id)
    return answer


def _not_there(answer_id: str) -> NotFound:
    return NotFound(
        f"Response with id '{answer_id[:200]}' not found: it was sent with 'store': false, was deleted, or its time is "
        "over.",
        param="response_id",
    )


def _page(call: Call, answer: StoredAnswer) -> Response:
    """Newest first, unless `order` is `asc`."""
    asked = call.request.query_params
    limit, order, after = asked.get("limit", str(_USUAL_ITEMS)), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= _MOST_ITEMS):
        raise InvalidRequest(f"'limit' must be a number from 1 to {_MOST_ITEMS}.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"'order' must be 'asc' or 'desc', got {order[:40]!r}.", param="order")
    items: list[dict[str, Any]] = decoded(answer.asked)
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise InvalidRequest(f"'after' names no item of this response: {after[:200]!r}.", param="after")
    start = 0 if after is None else ids.index(after) + 1
    data = ordered[start : start + int(limit)]
    page = {
        "object": "list",
        "data": [_shown(item) for item in data],
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + len(data) < len(ordered),
    }
    return Response(encoded(page, "input"), media_type="application/json")


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """A message's text is shown as a part, however it was sent."""
    content = item.get("content")
    if item.get("type") != "message" or not isinstance(content, str):
        return item
    if item.get("role") == "assistant":
        part: dict[str, Any] = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
    else:
        part = {"type": "input_text", "text": content}
    return {**item, "status": "completed", "content": [part]}
