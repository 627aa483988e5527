"""What a node that does not fit hears: one sentence with both sides, about the first thing that differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relevo.core.cluster import NodeFacts, NodeWorker, worker_id_on
from relevo.engine.fake_runner import fake_layout
from relevo.policy.cluster.checks import Denial, mismatch, mixing, own_and_foreign

HEAD = NodeFacts(
    version="1.2.0",
    protocol_version=5,
    model_name="m",
    model_hash="a" * 32,
    tokenizer_hash="t" * 32,
    max_model_len=4096,
    layout=fake_layout(16),
    compute="native avx2 auto/int16",
)


def test_equal_nodes_fit_also_where_one_has_no_workers() -> None:
    assert mismatch(HEAD, HEAD, "b", 0.9) is None
    assert mismatch(replace(HEAD, layout=None), HEAD, "b", -0.9) is None
    assert mismatch(HEAD, replace(HEAD, layout=None, max_model_len=1), "b", 0.0) is None
    assert mismatch(HEAD, replace(HEAD, model_name="another name", version="1.2.0+local"), "b", 0.0) is None


@pytest.mark.parametrize(
    ("changes", "skew_s", "reason", "words"),
    [
        ({"protocol_version": 6}, 0.0, Denial.PROTOCOL, "install Relevo 1.2.0"),
        ({"version": "1.3.0"}, 0.0, Denial.VERSION, "1.3.0"),
        ({}, 1.5, Denial.CLOCK, "1.5 s ahead of"),
        ({}, -1.5, Denial.CLOCK, "behind"),
        ({"model_hash": "b" * 32}, 0.0, Denial.MODEL, "bbbbbbbbbbbb"),
        ({"tokenizer_hash": ""}, 0.0, Denial.TOKENIZER, "digest none"),
        ({"layout": fake_layout(16, num_layers=2)}, 0.0, Denial.LAYOUT, "groups"),
        ({"max_model_len": 100}, 0.0, Denial.LENGTH, "--max-model-len 100"),
    ],
)
def test_what_differs_is_said(changes: dict[str, object], skew_s: float, reason: Denial, words: str) -> None:
    """Red for a mismatch that is found at the first handoff instead."""
    found = mismatch(HEAD, replace(HEAD, **changes), "box-b", skew_s)  # type: ignore[arg-type]
    assert found is not None
    assert (found.reason, words in found.message, "box-b" in found.message) == (reason, True, True), found.message
    assert found.is_final == (reason is not Denial.CLOCK)


def test_other_instructions_are_allowed_and_said() -> None:
    other = replace(HEAD, compute="native avx512 auto/int16")
    assert mismatch(HEAD, other, "b", 0.0) is None
    assert "avx512" in mixing(HEAD, other, "b")
    assert not mixing(HEAD, HEAD, "b")
    assert not mixing(replace(HEAD, compute=""), other, "b"), "a head without workers computes nothing"


def test_a_node_speaks_for_its_own_workers_alone() -> None:
    """Red when a node can name another's worker, also one whose name begins alike."""
    said = [NodeWorker(worker_id=each, role="decode", epoch=1) for each in ("b/d-0", "a/d-0", "bb/d-0", "b", "d-0")]
    own, foreign = own_and_foreign("b", said)
    assert [each.worker_id for each in own] == ["b/d-0"]
    assert foreign == ("a/d-0", "bb/d-0", "b", "d-0")
    assert own[0].worker_id == worker_id_on("b", "d-0")
