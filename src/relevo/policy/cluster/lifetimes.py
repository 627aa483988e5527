"""When certificates are renewed, and when a connection is made anew so that it outlives the certificates it began with.

Pure: Unix seconds come in. Half of a life is left for the renewal to fail in and for people to notice; machines that
were enrolled in one minute do not renew in one minute.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKDATED_S = 300  # how far before its issue a certificate is valid: clocks that are behind by less take it
DEFAULT_LIFE_S = 7 * 86_400
MIN_LIFE_S, MAX_LIFE_S = 10, 90 * 86_400  # arbitrary; renewal needs a few seconds
_RENEW_FROM, _RENEW_SPREAD = 0.5, 0.1  # of the life
_RECONNECT_LEFT, _RECONNECT_SPREAD = 0.3, 0.1  # of the life: after renewals, before the end


@dataclass(frozen=True, slots=True)
class Validity:
    """Of one certificate."""

    issued_at_s: float
    expires_at_s: float

    @property
    def life_s(self) -> float:
        return max(0.0, self.expires_at_s - self.issued_at_s)

    def renew_at_s(self, jitter: float) -> float:
        """`jitter`: 0 to 1, drawn once per certificate."""
        return self.issued_at_s + self.life_s * (_RENEW_FROM + _RENEW_SPREAD * jitter)

    def left(self, now_s: float) -> float:
        """Of its life: 1 when it is new, 0 when it is over."""
        return min(1.0, max(0.0, (self.expires_at_s - now_s) / self.life_s)) if self.life_s else 0.0

    def has_expired(self, now_s: float) -> bool:
        return now_s >= self.expires_at_s


def reconnect_at_s(own: Validity, peer: Validity, opened_at_s: float, jitter: float) -> float:
    """When a connection between these two is to be replaced. Where a certificate was old when it was opened, half of
    what is left of it is waited for: a side that cannot renew causes no storm."""
    return min(
        max(
            each.expires_at_s - each.life_s * (_RECONNECT_LEFT - _RECONNECT_SPREAD * jitter),
            opened_at_s + (each.expires_at_s - opened_at_s) / 2,
        )
        for each in (own, peer)
    )
