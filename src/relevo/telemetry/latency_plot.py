"""Pictures of latencies: cumulative distributions, a panel per kind, a curve per run. Needs the optional matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from relevo.core.errors import SettingsError
from relevo.telemetry.distribution import Values, Weights
from relevo.telemetry.latency import LATENCY_LABELS


class Samples(NamedTuple):
    """Of one kind of latency, in seconds; `weights`: how often each of them counts, None: once."""

    values_s: Values
    weights: Weights | None = None


def require_matplotlib() -> None:
    """Raise SettingsError before a run whose picture could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError("--plot needs matplotlib; install it with: pip install 'relevo[bench]'") from None


def plot_latencies(runs: Mapping[str, Mapping[str, Samples]], path: Path, title: str) -> None:
    """Write a PNG (or whatever the suffix of `path` says) with one panel per latency, log scale in ms.

    `runs`: by the name of the run, samples by the key of `LATENCY_LABELS`. Raises SettingsError for a path that cannot
    be written.
    """
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, (key, label) in zip(axes.flat, LATENCY_LABELS.items(), strict=True):
        axis.set_title(label)
        axis.set_xlabel("ms")
        axis.set_ylabel("fraction of samples")
        axis.grid(visible=True, alpha=0.3)
        for name, samples in runs.items():
            values_s, weights = samples[key]
            if any(value > 0 for value in values_s):
                axis.ecdf([value * 1e3 for value in values_s], weights, label=name)
                axis.set_xscale("log")
    if len(runs) > 1:
        axes.flat[0].legend()
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot write the picture {path}: {error}; give a path that ends in .png") from error
    finally:
        pyplot.close(figure)
