"""The seam between an API and where its answers are kept. What is kept of one is the API's own text and not read here.

Implementations: `memory` and `database`; tests/contract runs one suite on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    answer_id: str  # unique, and not to be guessed
    tenant: str  # empty without API keys
    previous_id: str = ""  # of the answer that it goes on from; empty: it begins a conversation
    asked: str  # what it answers
    body: str  # itself


class AnswerStore(Protocol):
    """An answer is kept for a time, and for as long as one that goes on from it. Waits end with LedgerUnavailable."""

    @property
    def keeps(self) -> bool:
        """False: it was told to keep none."""
        ...

    async def keep(self, answer: StoredAnswer) -> None:
        """It is there when this returns. Raises LedgerUnavailable."""
        ...

    async def chain(self, tenant: str, answer_id: str) -> Sequence[StoredAnswer]:
        """The answer and those before it, oldest first, as far as they are there; none: it is not there.

        Raises LedgerUnavailable, and InvalidRequest for one that is too long to be read.
        """
        ...

    async def find(self, tenant: str, answer_id: str) -> StoredAnswer | None:
        """Raises LedgerUnavailable."""
        ...

    async def forget(self, tenant: str, answer_id: str) -> bool:
        """False: it was not there. Raises LedgerUnavailable."""
        ...
