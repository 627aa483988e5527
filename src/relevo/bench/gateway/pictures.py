"""`bench gateway` as a report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.bench.gateway.run import DIRECT, GATEWAY, PathCost, added_ms, gateway_cost_table
from relevo.bench.html.figures import Axis, Bar, Bars, cumulative
from relevo.bench.html.page import Report
from relevo.telemetry.distribution import Samples


def gateway_page(costs: Sequence[PathCost]) -> Report:
    cpu = [Bar(cost.name, {"CPU": told}) for cost in costs if (told := cost.cpu_us_per_token) is not None]
    return Report(
        title="What each way to the engine adds",
        sentence=_sentence(costs),
        tables=gateway_cost_table(costs),
        figures=[
            cumulative("TTFT by way", {cost.name: Samples(cost.ttft_s) for cost in costs}),
            cumulative("ITL by way", {cost.name: Samples(cost.itl_s) for cost in costs}),
            Bars(title="CPU time of what is in between", axis=Axis(label="us per token"), rows=cpu, unit=" us"),
        ],
    )


def _sentence(costs: Sequence[PathCost]) -> str:
    by_name = {cost.name: cost for cost in costs if cost.num_tokens}
    if DIRECT not in by_name or GATEWAY not in by_name:
        return "Too little was measured to say what the gateway adds."
    added = added_ms(by_name[GATEWAY], by_name[DIRECT])
    return (
        f"The gateway adds {added.get('ttft_p50', 0.0):.2f} ms to TTFT and {added.get('itl_p50', 0.0):.2f} ms to ITL "
        f"at the median, for {by_name[GATEWAY].cpu_us_per_token or 0.0:.0f} us of CPU per token."
    )
