"""Whether a join token lets a node in, and as what. Pure: Unix seconds come in.

Life times are judged by one clock, that of the box that keeps the token; a box whose clock was set meanwhile is allowed
for by a tolerance. A use is for one key: who was given a certificate and did not get the answer may ask again with the
same key, which is of use to its owner alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

SKEW_TOLERANCE_S = 60.0  # arbitrary; clocks that are set step by less
DEFAULT_TTL_S = 3600.0
MAX_TTL_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What a token is good for."""

    made_at_s: float
    expires_at_s: float
    role: str  # that the node gets
    name: str = ""  # the only name that it is good for; empty: any that is free
    is_reusable: bool = False
    used_by_key: str = ""  # digest of the key that a certificate was made for; empty: unused, or reusable
    enrolment_id: str = ""  # of that use

    def used(self, key_digest: str, enrolment_id: str) -> TokenTerms:
        return self if self.is_reusable else replace(self, used_by_key=key_digest, enrolment_id=enrolment_id)

    def is_spent(self, now_s: float) -> bool:
        """It will never let anything in again, and need not be kept. Used ones are kept until they would expire."""
        return now_s >= self.expires_at_s + SKEW_TOLERANCE_S


def why_not(terms: TokenTerms, *, name: str, role: str, key_digest: str, now_s: float) -> str | None:
    """One sentence that is told to who has the token; None: it lets this node in."""
    if terms.is_spent(now_s):
        return (
            f"the join token expired at {utc(terms.expires_at_s)} and this head's clock says {utc(now_s)}; make "
            "another with `relevo cluster token`, or set the clock"
        )
    if terms.used_by_key and terms.used_by_key != key_digest:
        return "the join token was used already; make another with `relevo cluster token`, or one with --reusable"
    if terms.name and terms.name != name:
        return f"the join token is for a node named {terms.name} and this one is {name}; join with --name {terms.name}"
    if terms.role != role:
        return (
            f"the join token is for a {terms.role} and this is to be a {role}; make one with "
            f"`relevo cluster token --role {role}`"
        )
    return None


def utc(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
