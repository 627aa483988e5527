"""Tokens that have come over a connection and about which nothing is decided: they are told together, when it matters.

Owns what is owed, with the times at which it came. Every token of a stream that goes on is as the one before it: it
takes room where it is, and lets nothing in. So a gateway need not be told of each of them, as long as it has been told
when it looks. The first outputs of a request, its end, and what follows a message to its worker are told as they come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from relevo.core.baton import SampledToken
from relevo.core.events import TokenOutput
from relevo.core.ids import RequestId

_FEWEST_TOLD = 2  # outputs of a request after which the next ones are like them: the first ones end waiting and handoff


@dataclass(slots=True)
class _Owed:
    tokens: list[SampledToken] = field(default_factory=list)
    at_ns: list[int] = field(default_factory=list)  # when each of them came


@dataclass(slots=True)
class OwedTokens:
    _num_told: dict[RequestId, int] = field(default_factory=dict)  # outputs since the worker was told something
    _owed: dict[RequestId, _Owed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._owed)

    def keep(
        self, outputs: Iterable[TokenOutput], at_ns: Sequence[int], watched: Collection[str]
    ) -> tuple[TokenOutput, ...]:
        """Those of `outputs` that are to be told now; the others are owed, their tokens since `at_ns`, one each."""
        to_tell = []
        for output in outputs:
            request_id = output.request_id
            num_told = self._num_told.get(request_id, 0)
            if num_told >= _FEWEST_TOLD and _is_routine(output) and request_id not in watched:
                owed = self._owed.get(request_id)
                if owed is None:
                    owed = self._owed[request_id] = _Owed()
                owed.tokens.extend(output.tokens)
                owed.at_ns.extend(at_ns)
                continue
            to_tell.append(output)
            if output.finish_reason is None:
                self._num_told[request_id] = num_told + 1
            else:
                self.forget(request_id)
        return tuple(to_tell)

    def take(self, request_ids: Iterable[RequestId]) -> Iterator[tuple[TokenOutput, Sequence[int]]]:
        """What is owed of these: the tokens of each, and when they came."""
        for request_id in request_ids:
            owed = self._owed.pop(request_id, None)
            if owed is not None:
                yield TokenOutput(request_id, 0, tuple(owed.tokens)), owed.at_ns

    def take_all(self) -> Iterator[tuple[TokenOutput, Sequence[int]]]:
        yield from self.take(tuple(self._owed))

    def forget(self, request_id: RequestId) -> None:
        """Its worker is told something about it, or it has ended: what comes next is not as what came."""
        self._num_told.pop(request_id, None)


def _is_routine(output: TokenOutput) -> bool:
    """No end, no facts, no scores, and a token of the only continuation."""
    return output.finish_reason is None and output.facts is None and not output.sample_index and bool(output.tokens)
