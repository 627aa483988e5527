"""Answers of the simulator that still hold: steady traffic is not simulated anew every few seconds.

One answer is of so few requests that chance makes a tenth of them. Where that leaves open which mode is better, more
answers are asked, each of other requests under a demand that is alike, and pooled; where it does not, one is enough.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from relevo.policy.scaling.demand import Demand, is_alike
from relevo.policy.scaling.mode_outlook import ModeOutlook
from relevo.policy.scaling.modes import Mode
from relevo.policy.scaling.race import ENOUGH

KEPT_S = 60.0  # that no other answer is asked. Arbitrary: as long as the window that a demand is of
POOLED_S = 180.0  # that an answer counts. Arbitrary: step costs change more slowly than that
MOST = 4  # answers, whatever chance leaves open. Arbitrary


@dataclass(frozen=True, slots=True)
class _Answer:
    at_s: float
    seed: int
    demand: Demand
    outlooks: Mapping[Mode, ModeOutlook]


@dataclass(slots=True)
class AnswerPool:
    """`window_s`: that demands are counted in. `gain`: of requests that meet the targets, that matters."""

    window_s: float
    gain: float
    _asked: object = None
    _answers: list[_Answer] = field(default_factory=list)

    def known(self, asked: object, present: Mode, demand: Demand, now_s: float) -> Mapping[Mode, ModeOutlook] | None:
        """What is known of it, if that suffices. `asked`: modes and workers, all that an answer depends on besides."""
        alike = self._alike(asked, demand, now_s)
        if not alike or now_s - alike[-1].at_s >= KEPT_S:
            return None
        told = _pooled([each.outlooks for each in alike])
        return told if len(alike) >= MOST or _is_settled(told, present, self.gain) else None

    def seed(self, asked: object, demand: Demand, now_s: float) -> int:
        """Of the requests of the next answer, so that it tells something new."""
        used = {each.seed for each in self._alike(asked, demand, now_s)}
        return next(seed for seed in range(len(used) + 1) if seed not in used)

    def add(
        self, asked: object, demand: Demand, now_s: float, seed: int, outlooks: Mapping[Mode, ModeOutlook]
    ) -> Mapping[Mode, ModeOutlook]:
        """One more answer. What is known with it."""
        alike = self._alike(asked, demand, now_s)
        self._answers.append(_Answer(now_s, seed, demand, outlooks))
        return _pooled([*(each.outlooks for each in alike), outlooks])

    def _alike(self, asked: object, demand: Demand, now_s: float) -> list[_Answer]:
        if asked != self._asked:
            self._asked, self._answers = asked, []
        self._answers = [each for each in self._answers if now_s - each.at_s < POOLED_S]
        return [each for each in self._answers if is_alike(demand, each.demand, self.window_s)]


def _is_settled(told: Mapping[Mode, ModeOutlook], present: Mode, gain: float) -> bool:
    """More requests would change nothing: every other mode clearly gains something, or clearly nothing that matters."""
    now = told[present]
    if now.attained >= ENOUGH:
        return True
    others = [outlook for mode, outlook in told.items() if mode != present and not outlook.is_beaten]
    return all(abs(outlook.better_by(now) - gain) > outlook.noise(now) for outlook in others)


def _pooled(answers: Sequence[Mapping[Mode, ModeOutlook]]) -> Mapping[Mode, ModeOutlook]:
    if len(answers) == 1:
        return answers[0]
    return {mode: _of_all([each[mode] for each in answers]) for mode in answers[0]}


def _of_all(outlooks: Sequence[ModeOutlook]) -> ModeOutlook:
    """Of the requests of all of them. Times are the last one's; beaten is who was in half of them."""
    num_judged, num_surged = sum(each.num_judged for each in outlooks), sum(each.num_surged for each in outlooks)
    surged = [each for each in outlooks if each.surge_attained is not None]
    return replace(
        outlooks[-1],
        attained=_mean([(each.attained, each.num_judged) for each in outlooks]),
        surge_attained=_mean([(each.surge_attained or 0.0, each.num_surged) for each in surged]) if surged else None,
        num_judged=num_judged,
        num_surged=num_surged,
        is_beaten=2 * sum(each.is_beaten for each in outlooks) >= len(outlooks),
    )


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    """By the number of requests that each is of; of exact ones as often."""
    number = sum(count for _, count in parts)
    if not number:
        return sum(part for part, _ in parts) / len(parts)
    return sum(part * count for part, count in parts) / number
