"""One picture of a load test: cumulative distributions of TTFT, ITL, TPOT and E2E. Needs the optional matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relevo.bench.records import ClientRecord, Outcome
from relevo.core.errors import SettingsError


def require_matplotlib() -> None:
    """Raise SettingsError before a load test whose picture could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError("--plot needs matplotlib; install it with: pip install 'relevo[bench]'") from None


def plot_latencies(records: Sequence[ClientRecord], path: Path, title: str) -> None:
    """Write a PNG (or whatever the suffix of `path` says) with one panel per latency, log scale in ms."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, (label, values_s) in zip(axes.flat, _series(records).items(), strict=True):
        axis.set_title(label)
        axis.set_xlabel("ms")
        axis.set_ylabel("fraction of samples")
        axis.grid(visible=True, alpha=0.3)
        if values_s:
            axis.ecdf([value * 1e3 for value in values_s])
            axis.set_xscale("log")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _series(records: Sequence[ClientRecord]) -> dict[str, list[float]]:
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    return {
        "TTFT (client)": [value for r in completed if (value := r.times.ttft_s)],
        "ITL": [gap for r in completed for gap in r.times.itl_s if gap > 0],
        "TPOT": [value for r in completed if (value := r.tpot_s)],
        "E2E": [value for r in completed if (value := r.times.e2e_s)],
    }
