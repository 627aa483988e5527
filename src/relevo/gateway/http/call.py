"""One HTTP call on its way through the gateway: what a route handler is given."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Send

from relevo import __version__
from relevo.gateway.http.auth import Caller
from relevo.gateway.http.body import check_encoding, check_media_type, check_schema, parse_object, read_body
from relevo.gateway.http.context import GatewayContext
from relevo.gateway.http.errors import ErrorFormat
from relevo.gateway.requests.kept import LiveRequest
from relevo.gateway.text.served_models import ServedModel
from relevo.gateway.text.start_turns import StartTurns
from relevo.policy.tracing.words import CallTrace

T = TypeVar("T")
logger = logging.getLogger(__name__)


MAX_NAMED_FIELDS = 256  # arbitrary; clients choose some of the names


@dataclass(slots=True)
class FieldWarnings:
    """Names each field without effect once per process, however often it is sent."""

    _seen: set[str] = field(default_factory=set)

    def note(self, names: Iterable[str]) -> None:
        fresh = sorted(set(names) - self._seen)[: MAX_NAMED_FIELDS - len(self._seen)]
        if fresh:
            self._seen.update(fresh)
            logger.warning("request fields without effect fields=%s", ",".join(fresh))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    context: GatewayContext
    request: Request
    send: Send
    request_id: str  # of this HTTP request, echoed in x-request-id
    caller: Caller
    reply_headers: dict[str, str]  # added to the response, until it begins
    accepted_at_ns: int
    field_warnings: FieldWarnings
    start_turns: StartTurns  # of all calls of this gateway
    error_format: ErrorFormat  # of its path
    trace: CallTrace | None = None  # what is noted of it; None: nothing is
    live: LiveRequest | None = None  # what is kept of it; None: it is none for a model
    path_rest: str = ""  # what followed a route that takes the rest of the path

    @property
    def tenant(self) -> str:
        """Empty without API keys."""
        return self.caller.tenant

    async def read(
        self, work: Callable[[bytes], T], max_body_bytes: int | None = None, cost: Callable[[bytes], int] = len
    ) -> T:
        """`work(body)` once it is this call's turn: everything that costs more the more a client sends.

        On a thread if the body is long, or its `cost` is that of a long one; so `work` touches nothing that belongs to
        the event loop. Raises RequestError, Overloaded, and what `work` raises.
        """
        check_media_type(self.request.headers.get("content-type"))
        check_encoding(self.request.headers.get("content-encoding"))
        context = self.context
        most = context.max_body_bytes if max_body_bytes is None else min(max_body_bytes, context.max_body_bytes)
        body = await read_body(self.request, most, context.body_memory, self.tenant)
        try:
            await self.start_turns.enter()
            return await context.text_work.run(cost(body), lambda: work(body), self.tenant)
        finally:
            context.body_memory.give_back(len(body), self.tenant)

    def parse(
        self,
        body: bytes,
        schema: type[T],
        without_effect: frozenset[str] = frozenset(),
        refuse: Callable[[dict[str, Any]], None] | None = None,
    ) -> T:
        """The body as `schema`. Raises InvalidRequest, also what `refuse` raises for a member."""
        members = parse_object(body)
        self.field_warnings.note(name for name in members if name in without_effect)
        if refuse is not None:
            refuse(members)
        return check_schema(members, schema)


def system_fingerprint(served: ServedModel) -> str:
    """Changes with the version and the model: what may make equal seeds give different texts."""
    digest = hashlib.sha256("\0".join((served.model_hash, served.name)).encode()).hexdigest()
    return f"relevo-{__version__}-{digest[:8]}"
