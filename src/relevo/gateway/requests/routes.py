"""GET /v1/requests and /v1/requests/ID: what became of the caller's requests, and why they took so long.

An admin key sees the requests of all tenants. Where several gateways share a port all of them are asked: each keeps its
own. A request that is not there and one of another tenant have the same answer.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from relevo.core.errors import InvalidRequest
from relevo.gateway.http.call import Call
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.http.errors import NotFound
from relevo.gateway.http.replies import json_response
from relevo.gateway.http.route import Route
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.requests.history import SlowBy
from relevo.gateway.requests.query import SlowestQuery, parse_slowest
from relevo.gateway.requests.report import report_of

REPORT_BYTES = 8_192  # of text, to explain a prompt takes as long as that; measured: half a millisecond
MAX_ID_CHARS = 128  # no longer one is taken from a client
_TIME_OF = {SlowBy.TTFT: "ttft_s", SlowBy.E2E: "e2e_s", SlowBy.GAP: "worst_gap_s"}


async def show_request(call: Call) -> Response:
    """By its x-request-id, the id of its answer, or that of a prompt in the workers' logs. Raises NotFound."""
    name, context = call.path_rest, call.context
    if not name:
        raise InvalidRequest("Name a request: /v1/requests/ID, or ask /v1/requests?slowest=10.", param="id")
    report, is_admin = None, call.caller.is_admin
    if len(name) <= MAX_ID_CHARS:
        report = request_report(context, name, call.tenant, is_admin=is_admin)
        if report is None and context.others is not None:
            answers = await context.others.request_report(name, call.tenant, is_admin=is_admin)
            report = next((each for each in answers.values() if each is not None), None)
        if report is None:
            report = await context.reports.find(name, call.tenant, is_admin=is_admin)
    if report is None:
        raise NotFound(_not_here(context, name))
    return json_response(report)


async def show_requests(call: Call) -> Response:
    """The slowest. Query: `slowest`, `by`, `since`, `model`. Raises InvalidRequest."""
    context = call.context
    tenant = None if call.caller.is_admin else call.tenant
    query = parse_slowest(call.request.query_params, context.models, tenant, time.time_ns() // 1_000_000)
    reports, missing = await slowest_reports(context, query), list[str]()
    if context.others is not None:
        answers = await context.others.slowest_requests(query)
        missing = sorted(gateway_id for gateway_id, found in answers.items() if found is None)
        reports += [report for found in answers.values() for report in found or ()]
        reports.sort(key=lambda report: _slow_s(report, query.by), reverse=True)
    shown: dict[str, Any] = {"object": "list", "by": query.by.value, "data": reports[: query.num_most]}
    return json_response(shown | ({"gateways_without_answer": missing} if missing else {}))


def request_report(context: GatewayContext, name: str, tenant: str, *, is_admin: bool) -> dict[str, Any] | None:
    """What this gateway keeps of it."""
    kept = context.requests.find(name, tenant, context.clock.now_ns(), is_admin=is_admin)
    return report_of(kept, context.gateway_id) if kept is not None else None


async def slowest_reports(context: GatewayContext, query: SlowestQuery) -> list[dict[str, Any]]:
    """Of this gateway. Many are explained on a thread: streams go on meanwhile. Raises Overloaded."""
    found = context.requests.slowest(query.by, query.num_most, query.filter, context.clock.now_ns())
    cost, gateway_id = REPORT_BYTES * sum(max(1, len(kept.prompts)) for kept in found), context.gateway_id
    return await context.text_work.run(
        cost, lambda: [report_of(kept, gateway_id) for kept in found], query.tenant or ""
    )


def _slow_s(report: dict[str, Any], by: SlowBy) -> float:
    """One that has no first token yet is as late as it runs."""
    value = report[_TIME_OF[by]]
    return float(value if value is not None else report["e2e_s"])


def _not_here(context: GatewayContext, name: str) -> str:
    said = (
        f"There is no request {name[:MAX_ID_CHARS]!r} here. Each gateway keeps its own last "
        f"{context.requests.max_requests:,} requests and loses them when its process ends; "
    )
    if context.reports.max_reports:
        return said + f"the database has the last {context.reports.max_reports:,} of all."
    return said + "--ledger-timelines keeps them in the database of the usage ledger, too."


REQUEST_ROUTES = (
    Route("GET", "/v1/requests", show_requests, OPENAI_ERRORS, query=("slowest", "by", "since", "model")),
    Route("GET", "/v1/requests/*", show_request, OPENAI_ERRORS, errors=(404,)),
)
