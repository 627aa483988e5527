"""Questions about usage as people write them, and answers as JSON; one reading for `GET /v1/usage` and `relevo usage`.

Does not know HTTP or the database.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from relevo.core.errors import InvalidRequest
from relevo.gateway.metering.ledger import GroupBy, UsageFilter, UsageSum, total_of

_AGO = re.compile(r"(\d{1,6})([mhd])")
_UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIX_S = re.compile(r"\d{9,10}")
_FIRST_MS, _LAST_MS = (int(at.replace(tzinfo=UTC).timestamp()) * 1000 for at in (datetime.min, datetime.max))


class UsageSource(Protocol):
    async def usage(self, group_by: Sequence[GroupBy], where: UsageFilter) -> list[UsageSum]:
        """Raises DatabaseError."""
        ...


class NoUsage:
    """Where nothing is written nothing was used."""

    async def usage(self, group_by: Sequence[GroupBy], where: UsageFilter) -> list[UsageSum]:
        return []


def parse_moment(text: str, now_ms: int, param: str) -> int:
    """Unix milliseconds of `2026-11-30`, `2026-11-30T08:00`, Unix seconds, or `90m`, `24h`, `7d` ago.

    Without a zone it is UTC. Raises InvalidRequest, which names `param`.
    """
    text = text.strip()
    if ago := _AGO.fullmatch(text):
        moment_ms = now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    elif _UNIX_S.fullmatch(text):
        moment_ms = int(text) * 1000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidRequest(
                f"'{param}' is {text[:40]!r}; write 2026-11-30, 2026-11-30T08:00, Unix seconds, or 24h, 7d (so long "
                "ago).",
                param=param,
            ) from None
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        moment_ms = int(aware.timestamp() * 1000)
    if not _FIRST_MS <= moment_ms <= _LAST_MS:
        raise InvalidRequest(f"'{param}' is {text[:40]!r}, which is not between the years 1 and 9999.", param=param)
    return moment_ms


def parse_group_by(text: str, param: str) -> tuple[GroupBy, ...]:
    """`key,model,day`, in that order; empty: one sum. Raises InvalidRequest, which names `param`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tuple(dict.fromkeys(GroupBy(name) for name in names))
    except ValueError:
        offered = ", ".join(GroupBy)
        raise InvalidRequest(f"'{param}' is {text[:40]!r}; it takes a list of {offered}.", param=param) from None


def usage_json(group_by: Sequence[GroupBy], where: UsageFilter, sums: Sequence[UsageSum]) -> dict[str, Any]:
    """Costs are decimal text: JSON numbers would be rounded by their readers."""
    return {
        "object": "usage",
        "since": _iso(where.since_ms),
        "until": _iso(where.until_ms),
        "group_by": [str(name) for name in group_by],
        "data": [_named(group_by, one) | _counts(one) for one in sums],
        "total": _counts(total_of(sums)),
    }


COUNT_NAMES = (
    *("requests", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("unbilled_prompt_tokens", "unbilled_completion_tokens", "cost"),
)


def _counts(one: UsageSum) -> dict[str, int | str]:
    values = (
        *(one.num_requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens),
        *(one.unbilled_prompt_tokens, one.unbilled_completion_tokens, one.cost_text),
    )
    return dict(zip(COUNT_NAMES, values, strict=True))


def _named(group_by: Sequence[GroupBy], one: UsageSum) -> dict[str, str]:
    return {str(name): value for name, value in zip(group_by, one.group, strict=True)}


def _iso(moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
