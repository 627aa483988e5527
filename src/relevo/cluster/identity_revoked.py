"""Enrolments that were revoked: a list on every node's disk, each entry signed by the authority.

An entry can be told by one node to any other, since none but the authority can make one; the node process verifies what
it hears (`identity_authority.is_genuine`) before it is kept here. Entries are never forgotten: an enrolment does not
come back, a node may join again under its name with another one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from relevo.cluster.identity_folder import REVOKED, FileState, file_state, locked, read_private, write_private
from relevo.core.errors import StartError

log = logging.getLogger("relevo.cluster")

MAX_REVOCATIONS = 100_000  # arbitrary; one is made by a person


class Revocation(msgspec.Struct, frozen=True):
    """`signature`: of the authority, over the rest; hexadecimal."""

    enrolment_id: str
    name: str
    revoked_at_s: int  # Unix, of the box that revoked it; for people
    signature: str

    def signed_bytes(self) -> bytes:
        return "\0".join(("relevo-revocation-1", self.enrolment_id, self.name, str(self.revoked_at_s))).encode()


class RevokedList:
    """What the disk says, as of the last `refresh`."""

    def __init__(self, folder: Path) -> None:
        """Raises StartError: what is there cannot be read, so that it is not known who may come in."""
        self._folder = folder
        self._state: FileState = None
        self._by_enrolment: dict[str, Revocation] = {}
        self._read()

    def has(self, enrolment_id: str) -> bool:
        return enrolment_id in self._by_enrolment

    @property
    def entries(self) -> tuple[Revocation, ...]:
        return tuple(self._by_enrolment.values())

    def refresh(self) -> bool:
        """True if there is something new. Entries do not go while this process lives, whatever the disk says."""
        if file_state(self._folder / REVOKED) == self._state:
            return False
        num_known = len(self._by_enrolment)
        try:
            self._read()
        except StartError as error:
            log.error("revocations cannot be read, those that were known stay in force: %s", error)
        return len(self._by_enrolment) > num_known

    def learn(
        self, told: Iterable[Revocation], is_genuine: Callable[[Revocation], bool], *, is_locked: bool = False
    ) -> tuple[Revocation, ...]:
        """Keep what is new and genuine, on the disk first; returns it. `is_locked`: the caller has the folder's lock.
        Raises StartError."""
        new = [each for each in told if not self.has(each.enrolment_id) and is_genuine(each)]
        if not new:
            return ()
        with contextlib.nullcontext() if is_locked else locked(self._folder):
            self._read()
            everything = self._by_enrolment | {each.enrolment_id: each for each in new}
            if len(everything) > MAX_REVOCATIONS:
                raise StartError(f"{MAX_REVOCATIONS} enrolments are revoked already; begin a new cluster")
            write_private(self._folder / REVOKED, msgspec.json.encode(list(everything.values())))
        self._read()
        return tuple(new)

    def _read(self) -> None:
        path = self._folder / REVOKED
        self._state = file_state(path)  # before it is read; and what cannot be read is said once
        try:
            found = msgspec.json.decode(read_private(path), type=list[Revocation])
        except FileNotFoundError:
            found = []
        except msgspec.MsgspecError as error:
            raise StartError(f"{path} is damaged ({error}); bring it back from another node's folder") from error
        self._by_enrolment.update({each.enrolment_id: each for each in found})
