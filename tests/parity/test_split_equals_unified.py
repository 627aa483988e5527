"""One prefill and one decode worker answer what a single worker answers, whatever is asked.

300 requests: every two values of any two parameters meet, each with a seed and a prompt of its own, plus repeats for
the cached counts. Red when the baton forgets something, when a prefix hit changes a number, when usage is counted on
two workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from grid_requests import BLOCK_SIZE, STEP_TOKENS, GridRequest, make_grid
from stack import Stack, stack
from told_answers import Told, ask, difference, first_different, logprob_gap

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(3000)]

NUM_REQUESTS = 300
NUM_REPEATS = 20
FLAGS = (
    *("smollm2", "--dtype", "float32", "--max-model-len", "2048", "--num-kv-blocks", "4096"),  # nothing is evicted
    *("--max-num-batched-tokens", str(STEP_TOKENS)),
)


@dataclass
class Run:
    told: list[Told]
    num_handoffs: float


def answer_all(running: Stack, requests: list[GridRequest]) -> Run:
    """Requests of one concurrency together, the repeats last."""
    told: dict[int, Told] = {}
    for concurrency, is_repeat in ((1, False), (8, False), (32, False), (1, True)):
        group = [r for r in requests if (r.row["concurrency"], r.is_repeat) == (concurrency, is_repeat)]
        with ThreadPoolExecutor(concurrency) as pool:
            answers = pool.map(lambda asked: ask(running, asked), group)
            told |= {asked.number: answer for asked, answer in zip(group, answers, strict=True)}
    running.wait_idle()
    return Run([told[r.number] for r in requests], running.metric("relevo:handoffs_total", outcome="completed"))


def explain(running: Stack, asked: GridRequest, one: Told, other: Told) -> str:
    """The difference, and how close a choice it was: the two best log probabilities where the tokens part."""
    lines = [f"request {asked.number}: {difference(one, other)}; {asked.row}, seed {asked.seed}"]
    again = ask(running, asked, num_logprobs=5)
    for a, b, known in zip(one.choices, other.choices, again.choices, strict=True):
        at = first_different(a.token_ids, b.token_ids)
        if a.token_ids != b.token_ids and at < len(known.top_logprobs):
            best = sorted(known.top_logprobs[at].values(), reverse=True)
            lines.append(f"  token {at}: best {best[:5]}, the two best are {best[0] - best[1]:.2e} apart")
    return "\n".join(lines)


def check_prompt_and_cached_tokens(requests: list[GridRequest], run: Run) -> None:
    """Distinct prompts share no block; a repeated one is found but for its last block."""
    for asked, told in zip(requests, run.told, strict=True):
        length = asked.row["num_prompt_tokens"]
        assert told.usage["prompt_tokens"] == length
        expected = (length - 1) // BLOCK_SIZE * BLOCK_SIZE if asked.is_repeat else 0
        assert told.num_cached_tokens == expected, asked


def test_split_equals_unified(say: Callable[[str], None]) -> None:
    requests = make_grid(NUM_REQUESTS, NUM_REPEATS)
    with stack(*FLAGS, "--topology", "1p1d") as running:
        split = answer_all(running, requests)
    with stack(*FLAGS, "--topology", "unified") as running:
        unified = answer_all(running, requests)
        compared = list(zip(requests, split.told, unified.told, strict=True))
        wrong = [explain(running, r, a, b) for r, a, b in compared if difference(a, b) is not None]
    choices = [pair for _, s, u in compared for pair in zip(s.choices, u.choices, strict=True)]
    gaps = [logprob_gap(a, b) or 0.0 for a, b in choices if a.token_ids == b.token_ids]
    num_tokens = sum(told.usage["completion_tokens"] for told in unified.told)
    say(
        f"parity of split and unified: {NUM_REQUESTS - len(wrong)}/{NUM_REQUESTS} requests, {num_tokens} output "
        f"tokens, {split.num_handoffs:.0f} handoffs; log probabilities at most {max(gaps):.1e} apart"
    )
    assert not wrong, "\n".join(wrong)
    assert split.num_handoffs > NUM_REQUESTS / 4, "many prompts were to change worker"
    assert unified.num_handoffs == 0
    check_prompt_and_cached_tokens(requests, split)
    check_prompt_and_cached_tokens(requests, unified)
