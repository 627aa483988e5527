"""What a handoff adds to a request, learned while handoffs happen: by link, and by pair of workers once that is known.
Between two boxes it begins with what was measured of the way between them.

A pair that is much slower than others which are joined alike is named: a network that was asked for and is not used, a
cable, a crowded port. Routers avoid it by its costs, so what is known of it fades, and it is tried again.
Does not know workers or queues.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from relevo.core.handoff import Link
from relevo.core.ids import WorkerId

_SLOW = 5.0  # times as long as the best pair over the same link: such a pair is named. Arbitrary
_SLOWER_BY_S = 0.02  # at least: between pairs of some milliseconds it is noise. Arbitrary
_FADING = 0.01  # of what a slow pair was slower by, with each handoff of another one. Arbitrary
_SURE_AFTER = 3  # handoffs of a pair, before it is told from its link. Arbitrary
_MAX_PAIRS = 4096  # the one that was used longest ago is forgotten

Pair = tuple[WorkerId, WorkerId]  # who computes the prompt, who decodes


@dataclass(frozen=True, slots=True)
class BoxPair:
    from_box: str  # where a prompt is computed
    to_box: str


class HandoffCostModel:
    """Seconds that a handoff adds to a request, by pair of workers, and by how far blocks go for pairs that are not
    known: exponentially weighted means."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight  # of the newest handoff
        self._measured: dict[Link, float] = {}
        self._pairs: OrderedDict[Pair, tuple[Link, float, int]] = OrderedDict()  # link, mean, how many handoffs
        self._expected: dict[Link | Pair | BoxPair, float] = {}
        self.handoff_s: dict[Link | Pair | BoxPair, float] = dict.fromkeys(Link, 0.0)

    def observe(self, link: Link, waited_s: float, step_s: float, pair: Pair | None = None) -> None:
        """`waited_s`: last token of the prefill worker -> first output of the decode worker; `step_s` of it is the
        decode step that would have been there anyway."""
        added_s = max(0.0, waited_s - step_s)
        before_s = self._measured.get(link, added_s)
        self._measured[link] = before_s + self._weight * (added_s - before_s)
        if pair is not None:
            self._observe_pair(link, added_s, pair)
        self._note()

    def expect(self, boxes: BoxPair, added_s: float) -> None:
        """What the way between two boxes was measured to take: of pairs of workers that are not known yet."""
        self._expected[boxes] = added_s
        self._note()

    def _note(self) -> None:
        least_s = min(self._measured.values(), default=0.0)  # a link that was never used is to be tried
        self.handoff_s = {each: self._measured.get(each, least_s) for each in Link}
        self.handoff_s |= self._expected
        self.handoff_s |= {each: mean_s for each, (_, mean_s, number) in self._pairs.items() if number >= _SURE_AFTER}

    def _observe_pair(self, link: Link, added_s: float, pair: Pair) -> None:
        known = self._pairs.pop(pair, (link, added_s, 0))
        if known[0] is not link:  # it goes another way now
            known = (link, added_s, 0)
        weight = max(self._weight, 1.0 / (known[2] + 1))
        self._pairs[pair] = (link, known[1] + weight * (added_s - known[1]), known[2] + 1)
        if len(self._pairs) > _MAX_PAIRS:
            self._pairs.popitem(last=False)
        self._fade(link, pair)

    def _fade(self, link: Link, used: Pair) -> None:
        """What is known of slow pairs that are not used."""
        for pair in self.slow_pairs().keys() - {used}:
            of, mean_s, number = self._pairs[pair]
            if of is link:
                self._pairs[pair] = (of, mean_s + _FADING * (self._measured[of] - mean_s), number)

    def forget(self, worker_id: WorkerId) -> None:
        """Its next incarnation may be elsewhere."""
        for pair in [each for each in self._pairs if worker_id in each]:
            del self._pairs[pair]
            self.handoff_s.pop(pair, None)

    def slow_pairs(self) -> dict[Pair, float]:
        """How many times as long they take as the best pair over the same link does, where that is a lot."""
        sure = {pair: (link, mean_s) for pair, (link, mean_s, number) in self._pairs.items() if number >= _SURE_AFTER}
        best: dict[Link, float] = {}
        for link, mean_s in sure.values():
            best[link] = min(best.get(link, mean_s), mean_s)
        return {
            pair: mean_s / max(best[link], 1e-6)
            for pair, (link, mean_s) in sure.items()
            if mean_s > _SLOW * best[link] and mean_s > best[link] + _SLOWER_BY_S
        }
