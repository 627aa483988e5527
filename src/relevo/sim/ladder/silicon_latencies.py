"""What a measured server of the silicon table is predicted to make of its load: TTFT, TPOT and tokens per device.

Steady steps are `silicon_steps`'. A prompt waits for others in a closed queue (`policy.perf.closed_queue`): of prefill
workers where there are any, else of the steps in which prompts are computed beside decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relevo.policy.perf.closed_loop import steady_steps
from relevo.policy.perf.closed_queue import PromptQueue
from relevo.policy.perf.engine_constants import EngineConstants, StepWork
from relevo.policy.perf.reshard import PAGE_TOKENS, USUAL_PAGE_TOKENS, reshard_s
from relevo.policy.perf.roofline import RooflineModel
from relevo.policy.perf.step_time import StepShape
from relevo.policy.perf.step_work import DeviceWork
from relevo.sim.ladder.leave_out import LabelledSteps
from relevo.sim.ladder.silicon_steps import SiliconServers, chunks
from relevo.sim.tables.silicon import SiliconRow

_CHUNK = 8192  # tokens of prompts in a step of a rank. Assumed
LEVELS = (0.3, 0.6, 0.9, 1.2)  # of load, at which errors are told apart


class TtftTerms(NamedTuple):
    """What a time to first token is made of, in seconds (the first: a count). Its mean is a sum of shares of them."""

    fixed: float  # 1: what every request takes outside of steps
    service_s: float  # the steps of the prompt itself
    wave_s: float  # prompts of all requests in progress, one after the other: generators start them all at once
    step_s: float  # a step of what decodes
    wait_s: float  # in the closed queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    terms: TtftTerms
    tpot_s: float
    load: float  # of what computes prompts, if they never waited

    @property
    def level(self) -> str:
        """The class of its load."""
        for upto in LEVELS:
            if self.load <= upto:
                return f"load up to {upto:4.0%}"
        return f"load above {LEVELS[-1]:.0%}"


@dataclass(frozen=True, slots=True)
class ServedRow:
    """`prompt`: the steps of a prompt alone. `shared`: of one in line with others, (share, step) each."""

    row: SiliconRow
    labelled: LabelledSteps
    prompt: tuple[StepWork, ...]
    shared: tuple[tuple[float, StepWork], ...]
    num_servers: int
    num_devices: int
    reshard_s: float = 0.0  # of a prefill worker, to cut a prompt's KV for the decode workers

    @property
    def manner(self) -> tuple[str, bool, bool]:
        """What its TTFT is made of in the same way: engine, whether split, whether requests are all alike."""
        return self.row.engine, self.row.prefill is not None, self.row.has_fixed_lengths

    def predict(self, constants: EngineConstants) -> Prediction:
        tpot_s = self.labelled.steps.predicted_s(constants)
        busy_s = sum(share * constants.seconds(work) for share, work in self.shared)
        queue = PromptQueue(
            concurrency=self.row.concurrency,
            service_s=sum(constants.seconds(work) for work in self.prompt),
            busy_s=busy_s,
            num_servers=self.num_servers,
            elsewhere_s=self.row.num_output_tokens * tpot_s,
        )
        terms = TtftTerms(
            fixed=1.0,
            service_s=queue.service_s,
            wave_s=min(self.row.concurrency * busy_s / self.num_servers, queue.elsewhere_s),
            step_s=tpot_s,
            wait_s=queue.response_s - queue.service_s,
        )
        return Prediction(terms=terms, tpot_s=tpot_s + self._cutting_s(tpot_s), load=queue.load)

    def _cutting_s(self, tpot_s: float) -> float:
        """Of a token: an answer's second token waits until the KV of its prompt was cut, in line with others."""
        if not self.reshard_s or self.row.prefill is None:
            return 0.0
        line = PromptQueue(
            concurrency=self.row.concurrency,
            service_s=self.reshard_s,
            busy_s=self.reshard_s,
            num_servers=self.row.prefill.num_workers,
            elsewhere_s=self.row.num_output_tokens * tpot_s,
        )
        return line.response_s / self.row.num_output_tokens

    def tokens_per_s(self, ttft_s: float, tpot_s: float) -> float:
        """Of one device, by Little's law: so many requests in progress, each for so long."""
        row = self.row
        each_s = ttft_s + (row.num_output_tokens - 1) * tpot_s
        return row.concurrency * row.num_output_tokens / each_s / self.num_devices


def served_row(servers: SiliconServers, row: SiliconRow) -> ServedRow:
    """`servers` with whole prompts."""
    spread, num_workers, beside, cut_s = row.parallelism, 1, StepShape(), 0.0
    work = servers.device_work(row, row.parallelism)
    num_devices = row.num_workers * row.parallelism.num_devices
    if row.prefill is not None:
        spread, num_workers = row.prefill.parallelism, row.prefill.num_workers
        work = servers.device_work(row, spread)
        num_devices += num_workers * spread.num_devices
        page = PAGE_TOKENS.get(row.engine, USUAL_PAGE_TOKENS)
        cut_s = reshard_s(work.shape, spread, row.parallelism, row.num_input_tokens, page)
    else:
        beside = steady_steps(servers.loop(row, work), RooflineModel(work)).decode
    prompt, shared = _prompt(work, row.num_input_tokens, spread.attention_data, beside)
    return ServedRow(
        row=row,
        labelled=servers.steps(row),
        prompt=prompt,
        shared=shared,
        num_servers=num_workers * spread.attention_data,
        num_devices=num_devices,
        reshard_s=cut_s,
    )


def _prompt(
    work: DeviceWork, num_tokens: int, width: int, beside: StepShape
) -> tuple[tuple[StepWork, ...], tuple[tuple[float, StepWork], ...]]:
    """In chunks; a last one that leaves room in its step shares it where others wait."""
    alone: list[StepWork] = []
    shared: list[tuple[float, StepWork]] = []
    done = 0
    while done < num_tokens:
        size = min(_CHUNK, num_tokens - done)
        alone.append(work.work(chunks(beside, size, done, width)))
        number = max(1, _CHUNK // size)
        shared.append((1.0 / number, work.work(chunks(beside, size, done, width * number))))
        done += size
    return tuple(alone), tuple(shared)
