"""How many bytes of one kind are in memory at once, over all requests of a process, and that no tenant has them all."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.policy.http.byte_line import LEFT_FOR_OTHERS, takes_too_much


@dataclass(slots=True)
class ByteAccount:
    """`take` before the bytes are kept, `give_back` once they are not.

    `owner`: a tenant, empty where there are none. One that holds more than what is free has to leave a part of the
    account free, so that the others, each by the same rule, always find some.
    """

    max_bytes: int
    num_held: int = 0
    _by_owner: dict[str, int] = field(default_factory=dict)

    def take(self, num_bytes: int, owner: str = "") -> bool:
        """False: there is no room for it, and nothing was taken."""
        num_free = self.max_bytes - self.num_held - num_bytes
        num_own = self._by_owner.get(owner, 0) + num_bytes
        if num_free < 0 or takes_too_much(owner, num_own, num_free, self.max_bytes):
            return False
        self.num_held += num_bytes
        self._by_owner[owner] = num_own
        return True

    def give_back(self, num_bytes: int, owner: str = "") -> None:
        self.num_held -= num_bytes
        num_own = self._by_owner.pop(owner, 0) - num_bytes
        assert self.num_held >= 0 and num_own >= 0, "more was given back than taken"
        if num_own:
            self._by_owner[owner] = num_own


def room_for(largest_bytes: int) -> int:
    """The least `max_bytes` with which one owner may hold so many."""
    return -(-largest_bytes * LEFT_FOR_OTHERS // (LEFT_FOR_OTHERS - 1))
