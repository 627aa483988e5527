"""The native backend behind HTTP: what a worker hands over gives the bits that a server of one worker computes.

Red when a transport moves fewer bytes than a KV dtype has (int8 brings scales), when a chunk or batch rounds otherwise
than another, or when workers of one server are set up differently.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from stack import Stack, stack

pytestmark = pytest.mark.model

NUM_CLIENTS = 4
PROMPTS = [[7 + 13 * i % 40_000 for i in range(length)] for length in (3, 47, 64, 150)]


def answers(server: Stack) -> list[Any]:
    found = []
    for prompt in PROMPTS:
        choice = server.complete(prompt, max_tokens=12, logprobs=2, ignore_eos=True)["choices"][0]
        found.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return found


@pytest.mark.parametrize(("kv_dtype", "transport"), [("float16", "shm"), ("int8", "tcp")])
def test_split_answers_have_the_bits_of_unified_ones(kv_dtype: str, transport: str) -> None:
    """Log probabilities to the last digit that is sent. A handoff threshold must not hide: the counter says it ran."""
    flags = ("--kv-cache-dtype", kv_dtype, "--num-kv-blocks", "64", "--no-enable-prefix-caching")
    with stack("smollm2", "--topology", "unified", *flags) as alone:
        expected = answers(alone)
    with stack("smollm2", "--topology", "1p1d", "--kv-transport", transport, *flags) as split:
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:  # streams that run make prompts go elsewhere, whatever steps cost
            assert list(pool.map(lambda _: answers(split), range(NUM_CLIENTS))) == [expected] * NUM_CLIENTS
        split.wait_idle()
        assert split.metric("relevo:kv_transfer_bytes_total", role="prefill") > 0
