"""Rung 8: shares of a time to first token are found again, and measured servers are predicted as is published."""

from __future__ import annotations

import random

import pytest
from measured_data import measured_data

from relevo.sim.ladder.errors import ErrorTable
from relevo.sim.ladder.plan_rung import plan_rung
from relevo.sim.ladder.silicon_latencies import TtftTerms
from relevo.sim.ladder.ttft_fit import SeenTtft, TtftShares, fit_shares

MANNER = ("vllm", False, False)


def rows(shares: tuple[float, ...], noise: float, manner: tuple[str, bool, bool] = MANNER) -> list[SeenTtft]:
    rng = random.Random(3)
    found = []
    for _ in range(200):
        terms = TtftTerms(1.0, rng.uniform(0.02, 2), rng.uniform(0.1, 30), rng.uniform(0.005, 0.1), rng.uniform(0, 3))
        exact = sum(share * term for share, term in zip(shares, terms, strict=True))
        found.append(SeenTtft(manner, terms, exact * (1.0 + rng.uniform(-noise, noise))))
    return found


def test_shares_are_found_again_under_noise_and_wrong_rows() -> None:
    """Red when a row that is wrong by a hundred times decides, or a share becomes negative."""
    true = (0.5, 1.0, 0.06, 5.0, 0.0)
    seen = rows(true, 0.2)
    seen[0] = SeenTtft(MANNER, seen[0].terms, seen[0].measured_s * 100)
    assert fit_shares(seen) == pytest.approx(true, rel=0.35, abs=0.05)
    assert min(fit_shares(rows((0.0, 0.0, 0.05, 0.0, 0.0), 0.3))) >= 0.0


def test_a_manner_that_was_never_seen_gets_the_nearest_ones_shares() -> None:
    """Red when a split server of a new engine is told like an aggregated one, though other split ones were seen."""
    aggregated = rows((0.1, 1.0, 0.0, 0.0, 0.0), 0.0)
    split = rows((0.1, 3.0, 0.0, 0.0, 0.0), 0.0, ("sglang", True, False))
    terms = TtftTerms(1.0, 1.0, 0.0, 0.0, 0.0)
    both = TtftShares([*aggregated, *split])
    assert both.seconds(("trtllm", True, False), terms) == pytest.approx(3.1, rel=0.05)
    assert TtftShares(aggregated).seconds(("trtllm", True, False), terms) == pytest.approx(1.1, rel=0.05)


@pytest.mark.slow
def test_measured_servers_are_predicted_as_published() -> None:
    """Red when an error grows beyond what docs/simulation.md says, or the bad split comes out well."""
    report = plan_rung(measured_data())
    told = {table.title: table.overall.median_error for table in report.tables if isinstance(table, ErrorTable)}
    assert told["split servers, fitted to aggregated ones: TPOT"] < 0.16
    assert told["split servers, fitted to aggregated ones: throughput per device"] < 0.17
    for unseen in ("a model", "an engine", "a device"):
        assert told[f"{unseen} that was never seen: TPOT"] < 0.14
        assert told[f"{unseen} that was never seen: throughput per device"] < 0.145
        assert told[f"{unseen} that was never seen: TTFT"] < 0.47
    assert told["5 rows of the same servers seen: TPOT"] < 0.08
    per_device = {note.partition(" at ")[0]: float(note.split()[-2].replace(",", "")) for note in report.notes[:-1]}
    bad = per_device.pop("badly split: Qwen/Qwen3-32B sglang 6P+5D")
    assert bad < per_device["Qwen/Qwen3-32B sglang 5P+11D"] / 3
