"""Questions about requests as people write them: how many of the slowest, by what, since when, of which model."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from relevo.core.errors import InvalidRequest, ModelNotFound
from relevo.gateway.metering.usage_query import parse_moment
from relevo.gateway.requests.history import RequestFilter, SlowBy
from relevo.gateway.text.served_models import ServedModels

DEFAULT_SLOWEST = 10
MAX_SLOWEST = 100  # arbitrary: each is explained


class SlowestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Also what one gateway asks another."""

    num_most: int = DEFAULT_SLOWEST
    by: SlowBy = SlowBy.E2E
    tenant: str | None = None  # None: of all, for admins
    models: tuple[str, ...] | None = None
    since_unix_ms: int | None = None

    @property
    def filter(self) -> RequestFilter:
        models = frozenset(self.models) if self.models is not None else None
        return RequestFilter(tenant=self.tenant, models=models, since_unix_ms=self.since_unix_ms)


def parse_slowest(query: Mapping[str, str], models: ServedModels, tenant: str | None, now_unix_ms: int) -> SlowestQuery:
    """Raises InvalidRequest, which names the parameter."""
    since = query.get("since")
    return SlowestQuery(
        num_most=_number(query["slowest"]) if "slowest" in query else DEFAULT_SLOWEST,
        by=_by(query["by"]) if "by" in query else SlowBy.E2E,
        tenant=tenant,
        models=_names(query["model"], models) if "model" in query else None,
        since_unix_ms=parse_moment(since, now_unix_ms, "since") if since is not None else None,
    )


def _number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if not 1 <= number <= MAX_SLOWEST:
        raise InvalidRequest(f"'slowest' is {text[:40]!r}; write a number from 1 to {MAX_SLOWEST}.", param="slowest")
    return number


def _by(text: str) -> SlowBy:
    try:
        return SlowBy(text)
    except ValueError:
        offered = ", ".join(SlowBy)
        raise InvalidRequest(f"'by' is {text[:40]!r}; it takes one of {offered}.", param="by") from None


def _names(text: str, models: ServedModels) -> tuple[str, ...]:
    """Every name of that model."""
    try:
        return tuple(models.find(text).names)
    except ModelNotFound as error:
        raise InvalidRequest(error.message, param="model") from None
