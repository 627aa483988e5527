"""Which requests of a step that raised are the reason, by halves.

Pure: says what to ask next, is told what came of it. It does not know what a step computes. Deterministic, and bounded:
a step of N requests is answered after fewer than 2 N questions, one culprit among them after 2 log2 N.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relevo.core.ids import RequestId


class Suspects:
    """Requests of one step, in its order. Ask `next_group` until it is empty; tell each group's answer before."""

    def __init__(self, request_ids: Sequence[RequestId], named: Collection[str] = ()) -> None:
        """The whole group has raised; `named`: those that the error itself holds to be the reason."""
        self.culprits: list[RequestId] = []
        self._groups: list[Sequence[RequestId]] = []  # the last one is next
        self._asked: Sequence[RequestId] = tuple(request_ids)
        self.raised(named)

    @property
    def next_group(self) -> Sequence[RequestId]:
        """Requests to compute without the others; empty: all are known."""
        self._asked = self._groups[-1] if self._groups else ()
        return self._asked

    def passed(self) -> None:
        """The group asked about last raised nothing: none of it is a reason."""
        self._groups.pop()

    def raised(self, named: Collection[str] = ()) -> Sequence[RequestId]:
        """The group asked about last raised. Returns those of it that are culprits now."""
        group = self._asked
        if self._groups:
            self._groups.pop()
        found = [each for each in group if each in named] or (list(group) if len(group) == 1 else [])
        self.culprits += found
        others = tuple(each for each in group if each not in found)
        if found:
            halves = [others] if others else []
        else:
            middle = len(others) // 2
            halves = [others[middle:], others[:middle]]
        self._groups += halves
        return found
