"""GET /v1/usage: what the caller's own key has used; an admin key sees every key."""

from __future__ import annotations

import time

import orjson
from starlette.responses import Response

from relevo.core.errors import LedgerUnavailable
from relevo.gateway.http.call import Call
from relevo.gateway.metering.database import DatabaseError
from relevo.gateway.metering.ledger import UsageFilter
from relevo.gateway.metering.usage_query import parse_group_by, parse_moment, usage_json

DEFAULT_GROUP_BY = "key,model,day"


async def show_usage(call: Call) -> Response:
    """Query: `since`, `until`, `group_by`, and for admins `key`. Raises InvalidRequest, LedgerUnavailable."""
    query = call.request.query_params
    now_ms = time.time_ns() // 1_000_000
    group_by = parse_group_by(query.get("group_by", DEFAULT_GROUP_BY), "group_by")
    since, until = query.get("since"), query.get("until")
    where = UsageFilter(
        since_ms=parse_moment(since, now_ms, "since") if since else None,
        until_ms=parse_moment(until, now_ms, "until") if until else None,
        key_id=query.get("key") if call.caller.is_admin else call.caller.key_id,
    )
    try:
        sums = await call.context.usage.usage(group_by, where)
    except DatabaseError:
        raise LedgerUnavailable("The usage ledger cannot be read at present; try again shortly.") from None
    return Response(orjson.dumps(usage_json(group_by, where, sums)), media_type="application/json")
