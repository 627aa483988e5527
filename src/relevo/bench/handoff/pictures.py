"""`bench handoff` as a report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relevo.bench.handoff.run import HandoffCost, handoff_table
from relevo.bench.html.figures import Axis, Bar, Bars, Curve, Plot
from relevo.bench.html.page import Report
from relevo.telemetry.latency import milliseconds


def handoff_page(url: str, costs: Sequence[HandoffCost]) -> Report:
    shares = [
        Bar(f"{cost.prompt_len} tokens", {"handoff": 100 * cost.handoff_share_of_ttft})
        for cost in costs
        if cost.handoff_share_of_ttft is not None
    ]
    curves = [
        Curve("TTFT", _means_ms(costs, lambda cost: cost.client_ttft_s.mean if cost.client_ttft_s else None)),
        Curve("handoff", _means_ms(costs, lambda cost: cost.handoff_s)),
        Curve("transfer", _means_ms(costs, lambda cost: cost.transfer_s)),
    ]
    return Report(
        title=f"Handoffs of {url}",
        sentence=_sentence(costs),
        tables=handoff_table(costs),
        figures=[
            Plot(
                title="Means by length of the prompt",
                x=Axis(label="tokens", is_log=True),
                y=Axis(label="ms", is_log=True),
                curves=[curve for curve in curves if curve.points],
            ),
            Bars(title="The handoff's share of TTFT", axis=Axis(label="%"), rows=shares, unit=" %"),
        ],
    )


def _means_ms(
    costs: Sequence[HandoffCost], value_s: Callable[[HandoffCost], float | None]
) -> list[tuple[float, float]]:
    values = [(float(cost.prompt_len), value_s(cost)) for cost in costs]
    return sorted((length, value * 1e3) for length, value in values if value)


def _sentence(costs: Sequence[HandoffCost]) -> str:
    told = [cost for cost in costs if cost.handoff_share_of_ttft is not None]
    if not told:
        return "The server counted no handoff."
    longest = max(told, key=lambda cost: cost.prompt_len)
    return (
        f"Of a prompt of {longest.prompt_len} tokens the handoff takes {milliseconds(longest.handoff_s)} ms, "
        f"{100 * (longest.handoff_share_of_ttft or 0.0):.1f} % of TTFT."
    )
