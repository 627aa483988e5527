"""The memory of answers that are sent whole: bounded for one, and in sum over all that a gateway puts together."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.errors import AnswerTooLarge, Overloaded
from relevo.gateway.http.byte_account import ByteAccount

MAX_ANSWER_BYTES = 64 * 2**20  # arbitrary
STEP_BYTES = 64 * 1024  # arbitrary: taken from the account at once, so that a token costs an addition


@dataclass(slots=True)
class KeptAnswer:
    """One answer's; a small one takes nothing from the account, so it never fails for others."""

    memory: ByteAccount
    tenant: str = ""
    max_bytes: int = MAX_ANSWER_BYTES
    num_bytes: int = 0
    _num_taken: int = 0

    def grow(self, num_bytes: int) -> None:
        """Raises AnswerTooLarge, Overloaded."""
        self.num_bytes += num_bytes
        if self.num_bytes > self.max_bytes:
            raise AnswerTooLarge(
                f"The answer is larger than {self.max_bytes} bytes, the limit of one that is sent whole; ask for fewer "
                "choices, tokens or log probabilities, or send 'stream': true."
            )
        while self.num_bytes - self._num_taken > STEP_BYTES:
            if not self.memory.take(STEP_BYTES, self.tenant):
                raise Overloaded(
                    f"Answers of {self.memory.max_bytes} bytes are being put together, which is the limit, or those of "
                    "your keys have their part of it; send 'stream': true, or try again."
                )
            self._num_taken += STEP_BYTES

    def give_back(self) -> None:
        """Idempotent."""
        self.memory.give_back(self._num_taken, self.tenant)
        self._num_taken = 0
