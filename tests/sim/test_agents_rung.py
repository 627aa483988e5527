"""Rung 7: agents on the same nodes, colocated and split. Red when prompts no longer hold up the answers of a colocated
node, or do so on a decode node."""

from __future__ import annotations

from statistics import fmean

import pytest
from measured_data import measured_data

from relevo.sim.ladder.agents_rung import AgentNodes, Fleet, agent_calls

_GAP_P99 = 5  # column of a row


def test_calls_have_the_published_means() -> None:
    """67.8k prompt and 527 output tokens; each waits for the one before it or is among the first."""
    calls = agent_calls(48)
    assert fmean(call.num_prompt_tokens for call in calls) == pytest.approx(67_800, rel=0.05)
    assert fmean(call.num_output_tokens for call in calls) == pytest.approx(527, rel=0.1)
    assert sum(not call.is_closed_loop for call in calls) == 48


def test_prompts_hold_up_answers_only_where_both_are_computed() -> None:
    """A colocated step with 2,048 tokens of a prompt takes 0.1 s; the decode nodes of a split fleet take none."""
    nodes, calls = AgentNodes(measured_data()), agent_calls(16, sessions_each=1)
    colocated = nodes.row(Fleet(chunk_tokens=2048), calls)
    split = nodes.row(Fleet(num_prefill=2), calls)
    assert float(split[_GAP_P99]) < 25.0 < 75.0 < float(colocated[_GAP_P99])
    assert nodes.row(Fleet(num_prefill=2), calls) == split
