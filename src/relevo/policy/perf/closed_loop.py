"""What a worker's steps look like when a fixed number of requests is always in progress, and the time per token then.

Load generators measure so: as one request ends, the next one begins. Then every output token is drawn in a step that
also computes, on average, its share of the other requests' prompts; a decode-only worker computes none. A mean over the
steady state: no queue, no tails. For those simulate.

Requests of one length that are served prompts first march in step: as many prompts of others fall before a request's
first token as after it, and those before it lengthen its TTFT alone.

Source: the balance of a closed system (Little's law), applied to prompt tokens per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relevo.policy.perf.step_time import StepShape, StepTimeModel, decode_shape

_NUM_ROUNDS = 40  # of a damped fixed point; it settles within 20. Arbitrary


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    concurrency: float  # requests in progress, of one worker
    num_input_tokens: int
    num_output_tokens: int
    max_step_tokens: int = 8192  # of prompts in a step
    max_rows: float = float("inf")  # that the worker's KV pool holds
    is_in_waves: bool = False  # all requests are alike, and waiting prompts are computed before anything decodes
    is_decode_only: bool = False  # prompts are computed elsewhere
    max_requests_per_s: float = float("inf")  # that what computes prompts elsewhere can deliver

    @property
    def context(self) -> float:
        """Of a decode row, in the middle of its output."""
        return self.num_input_tokens + self.num_output_tokens / 2


class SteadySteps(NamedTuple):
    """`mixed_fraction` of the steps hold a piece of a prompt, the others only decode rows."""

    decode: StepShape
    mixed: StepShape
    mixed_fraction: float

    def tpot_s(self, model: StepTimeModel) -> float:
        decode_s = model.step_s(self.decode)
        if not self.mixed_fraction:
            return decode_s
        return decode_s + self.mixed_fraction * (model.step_s(self.mixed) - decode_s)


def steady_steps(loop: ClosedLoop, model: StepTimeModel) -> SteadySteps:
    """`model` decides how many of the requests decode at a time: the others have their prompt computed or wait."""
    prompt_s = _prompt_s(loop, model)
    num_rows = min(loop.concurrency, loop.max_rows)
    for _ in range(_NUM_ROUNDS):
        decode_s = loop.num_output_tokens * steps_of(loop, num_rows).tpot_s(model)
        share = decode_s / (decode_s + prompt_s)
        target = min(loop.concurrency * share, loop.max_rows, loop.max_requests_per_s * decode_s)
        num_rows += 0.5 * (target - num_rows)
    return steps_of(loop, max(1.0, num_rows))


def steps_of(loop: ClosedLoop, num_rows: float) -> SteadySteps:
    """With that many rows decoding on average."""
    rows = max(1, round(num_rows))
    decode = decode_shape(rows, rows * loop.context)
    if loop.is_decode_only or num_rows <= 1.0:
        return SteadySteps(decode, decode, 0.0)
    num_met = (num_rows - 1) * (0.5 if loop.is_in_waves else 1.0)  # prompts of others between first and last token
    tokens_per_step = num_met * loop.num_input_tokens / loop.num_output_tokens
    num_chunk = min(loop.num_input_tokens, loop.max_step_tokens)
    num_tokens = min(max(tokens_per_step, num_chunk), loop.max_step_tokens)
    num_chunks = num_tokens / num_chunk
    mean_context = (loop.num_input_tokens - num_chunk) / 2
    mixed = decode._replace(
        num_prefill_rows=round(num_chunks),
        num_prefill_tokens=round(num_tokens),
        num_prefill_kv_tokens=num_chunks * (mean_context + num_chunk),
        num_prefill_pairs=num_tokens * (mean_context + (num_chunk + 1) / 2),
    )
    return SteadySteps(decode, mixed, min(1.0, tokens_per_step / num_tokens))


def _prompt_s(loop: ClosedLoop, model: StepTimeModel) -> float:
    """Of one prompt alone, in chunks."""
    total, done = 0.0, 0
    while done < loop.num_input_tokens:
        chunk = min(loop.max_step_tokens, loop.num_input_tokens - done)
        total += model.step_s(StepShape().with_chunk(chunk, done))
        done += chunk
    return total
