"""What an API contributes to an answer: the bytes of its stream and of its whole body. The order of calls is
`generation.answer`'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relevo.core.errors import RelevoError
from relevo.gateway.generation.finished_choice import FinishedChoice
from relevo.gateway.text.parts import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of all prompts and choices of a request, up to now."""

    num_prompt_tokens: int  # cached ones included
    num_cached_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int = 0  # of these


class ReplyWriter(Protocol):
    """One answer's. A stream is `begin`, then `delta` for each (an ended choice has `finish_choice` too), `end`; or
    `error` in the place of what is missing."""

    @property
    def response_id(self) -> str:
        """Of the answer, as the client sees it."""
        ...

    @property
    def keepalive(self) -> bytes:
        """What may stand between events when there is nothing to tell."""
        ...

    def begin(self) -> Iterator[bytes]:
        """Before the first delta; prompts are computed, so what they cost is known. In pieces, as they are sent."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """New parts or tokens of a choice; empty if there is nothing to tell."""
        ...

    def finish_choice(self, delta: Delta) -> bytes:
        """The end of a choice, after its last delta. The last choice's is sent once the ledger has the request."""
        ...

    def end(self) -> bytes:
        """What makes the stream complete."""
        ...

    def error(self, error: RelevoError) -> bytes:
        """Ends a stream that cannot be completed, so that no client takes it for complete."""
        ...

    def logprobs(self, delta: Delta) -> Mapping[str, Any] | None:
        """What a whole answer says of the tokens' probabilities; None: nothing."""
        ...

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """The JSON body of an answer that is not streamed."""
        ...
