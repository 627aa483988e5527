"""`bench quality` as a report. Pure."""

from __future__ import annotations

import math

from relevo.bench.html.figures import Axis, Bar, Bars, Curve, Look, Plot
from relevo.bench.html.page import Report
from relevo.bench.quality.run import QualityReport, quality_tables


def quality_page(report: QualityReport) -> Report:
    scores = [score for score in report.scores if score.num_tokens]
    finite = [score for score in scores if math.isfinite(score.mean_kl)]
    best = min(finite, key=lambda score: score.mean_kl, default=None)
    sentence = (
        "Nothing was compared."
        if best is None
        else (
            f"{best.name} is nearest to {report.reference}: mean KL {best.mean_kl:.2e}, "
            f"the same greedy choice at {100 * best.agreement:.2f} % of {best.num_tokens:,} tokens."
        )
    )
    margins = [Curve(s.name, [(float(i + 1), one.margin) for i, one in enumerate(s.shown)], Look.DOTS) for s in scores]
    lost = [score.name for score in scores if score not in finite]
    return Report(
        title=f"Distance from {report.reference}",
        sentence=sentence,
        tables=quality_tables(report),
        figures=[
            Bars(
                title="Mean KL divergence",
                axis=Axis(label="millinats"),
                rows=[Bar(score.name, {"KL": 1e3 * max(0.0, score.mean_kl)}) for score in finite],
            ),
            Bars(
                title="Greedy choices that differ",
                axis=Axis(label="% of the tokens"),
                rows=[
                    Bar(
                        score.name,
                        {
                            "near ties": 100 * score.num_near_ties / score.num_tokens,
                            "others": 100 * (score.num_disagreements - score.num_near_ties) / score.num_tokens,
                        },
                    )
                    for score in scores
                ],
                unit=" %",
            ),
            Plot(
                title="The widest margins of choices that differ",
                x=Axis(label="rank", from_zero=True),
                y=Axis(label="logits between the reference's best two", from_zero=True),
                curves=[curve for curve in margins if curve.points],
            ),
        ],
        notes=[f"{name}: its divergence is no finite number, and is in no plot" for name in lost],
    )
