"""What an authority remembers: tokens, as digests, and the nodes that it has enrolled. Files of its folder.

Every change is read, judged and written under the folder's lock and is on the disk before anything is answered, so that
a token that was used stays used whatever is killed. Does not know connections, nor what a certificate contains.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from relevo.cluster.identity_folder import ROSTER, TERMS, TOKENS, locked, read_private, write_private
from relevo.core.errors import StartError
from relevo.policy.cluster.lifetimes import DEFAULT_LIFE_S, MAX_LIFE_S, MIN_LIFE_S
from relevo.policy.cluster.tokens import TokenTerms

FORGOTTEN_AFTER_S = 90 * 86_400  # arbitrary; for people who look for a node that is gone
MAX_TOKENS = 10_000  # arbitrary; of which none has expired

T = TypeVar("T")


class Enrolled(msgspec.Struct, frozen=True):
    """One enrolment of one node, and its latest certificate. Unix seconds."""

    name: str
    role: str
    enrolment_id: str
    enrolled_at_s: float
    issued_at_s: float
    expires_at_s: float
    num_certificates: int = 1


class AuthorityTerms(msgspec.Struct, frozen=True):
    """What was chosen when the cluster was made; may be edited, for certificates that are signed from then on."""

    certificate_life_s: float = DEFAULT_LIFE_S


@dataclass(slots=True)
class Records:
    """As long as the lock is held. `tokens`: by digest; `nodes`: by enrolment."""

    tokens: dict[str, TokenTerms]
    nodes: dict[str, Enrolled]

    def token(self, digest: str) -> TokenTerms | None:
        """Takes the same time for each that is looked for."""
        found = None
        for known, terms in self.tokens.items():
            if hmac.compare_digest(known, digest):
                found = terms
        return found


@contextlib.contextmanager
def changing_records(folder: Path, now_s: float) -> Iterator[Records]:
    """What was changed is on the disk when this is left; nothing is where it is left by an error. Raises StartError."""
    with locked(folder):
        records = read_records(folder)
        tokens, nodes = dict(records.tokens), dict(records.nodes)
        yield records
        records.tokens = {digest: terms for digest, terms in records.tokens.items() if not terms.is_spent(now_s)}
        if len(records.tokens) > MAX_TOKENS:
            raise StartError(f"{MAX_TOKENS} join tokens are valid already; wait until some have expired")
        records.nodes = {
            key: node for key, node in records.nodes.items() if node.expires_at_s + FORGOTTEN_AFTER_S > now_s
        }
        if records.nodes != nodes:
            write_private(folder / ROSTER, msgspec.json.encode(records.nodes))
        if records.tokens != tokens:
            write_private(folder / TOKENS, msgspec.json.encode(records.tokens))


def read_records(folder: Path) -> Records:
    """Raises StartError."""
    return Records(_read(folder / TOKENS, dict[str, TokenTerms]), _read(folder / ROSTER, dict[str, Enrolled]))


def read_terms(folder: Path) -> AuthorityTerms:
    """Raises StartError."""
    terms = _read(folder / TERMS, AuthorityTerms)
    if not MIN_LIFE_S <= terms.certificate_life_s <= MAX_LIFE_S:
        raise StartError(
            f"{folder / TERMS}: certificate_life_s is {terms.certificate_life_s:g} and has to be from {MIN_LIFE_S} to "
            f"{MAX_LIFE_S}"
        )
    return terms


def keep_terms(folder: Path, terms: AuthorityTerms) -> None:
    write_private(folder / TERMS, msgspec.json.encode(terms))


def _read(path: Path, kind: type[T]) -> T:
    """An empty one where there is no file."""
    try:
        return msgspec.json.decode(read_private(path), type=kind)
    except FileNotFoundError:
        return kind()
    except msgspec.MsgspecError as error:
        raise StartError(
            f"{path} is damaged ({error}); bring back a copy, or move it away: its entries are lost"
        ) from error
