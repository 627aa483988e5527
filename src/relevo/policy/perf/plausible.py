"""Whether a table of times can be in the unit that it is read in: milliseconds taken for seconds are 1000 times off.

Bounds are of one stream of a language model. They are wide, and still what is off by a thousand is outside: published
steps take 2 to 100 ms. Pure.
"""

from __future__ import annotations

from relevo.core.errors import StartError
from relevo.policy.perf.step_time import StepShape, StepTimeModel, decode_shape

_CONTEXT, _PROMPT = 512, 512  # tokens
_LEAST_S, _MOST_S, _MOST_PROMPT_S = 3e-4, 3.0, 60.0


def check_step_times(times: StepTimeModel, source: str) -> None:
    """Of an accelerator. Raises StartError for times that no model has there."""
    check_tpot(times.step_s(decode_shape(1, _CONTEXT)), source)
    prompt_s = times.step_s(StepShape().with_chunk(_PROMPT, 0))
    if not _LEAST_S <= prompt_s <= _MOST_PROMPT_S:
        raise StartError(_words(source, f"a prompt of {_PROMPT} tokens", prompt_s, _MOST_PROMPT_S))


def check_tpot(tpot_s: float, source: str) -> None:
    """As `check_step_times`, of the time between two tokens of a stream."""
    if not _LEAST_S <= tpot_s <= _MOST_S:
        raise StartError(_words(source, "a token of one stream", tpot_s, _MOST_S))


def _words(source: str, what: str, seconds: float, most_s: float) -> str:
    return f"{source}: {what} takes {seconds:g} s, expected are {_LEAST_S:g} to {most_s:g} s; is it in another unit?"
