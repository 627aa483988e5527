"""`relevo bench handoff`: what the handoff costs per prompt length on a running server, from its own metrics.

One prompt at a time on an idle server, so that the difference between two scrapes of /metrics belongs to the prompts
in between. The share compares the mean handoff (first token sampled on the prefill worker -> decode started) with the
client's mean TTFT; a server that did not hand off (unified, or prompts kept local) shows zero handoffs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from relevo.bench.client import OpenAIClient
from relevo.bench.load import run_open_loop
from relevo.bench.prompt_source import PromptSource
from relevo.bench.records import ClientRecord, Endpoint, Outcome, PlannedRequest
from relevo.client.prometheus_text import metric_deltas, metric_sums
from relevo.telemetry.latency import Summary, milliseconds, summarise
from relevo.telemetry.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOptions:
    url: str
    model: str | None
    api_key: str | None
    prompt_lens: Sequence[int]
    num_repeats: int
    max_tokens: int  # at least 2, or the prefill worker ends the request itself
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffCost:
    """Per prompt length. Means are over the handoffs that the server counted; None: it counted none."""

    prompt_len: int
    num_completed: int
    num_failed: int
    client_ttft_s: Summary | None
    num_handoffs: int
    handoff_s: float | None
    transfer_s: float | None
    transferred_bytes: float | None
    handoff_share_of_ttft: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def measure_handoffs(options: HandoffOptions, costs: list[HandoffCost], progress: Progress) -> None:
    """Append to `costs`, length by length. Raises StartError, Unauthorized or ModelNotFound before the first prompt."""
    extra = {"ignore_eos": True, "temperature": 0.0}
    async with OpenAIClient(options.url, api_key=options.api_key) as client:
        model = await client.pick_model(options.model)
        prompts = await PromptSource.open(client, model, Endpoint.COMPLETIONS, seed=options.seed)

        async def send(planned: PlannedRequest, record: ClientRecord) -> None:
            await client.stream(planned, record, model=model, endpoint=Endpoint.COMPLETIONS, extra=extra)
            progress.advance()

        progress.begin("", len(options.prompt_lens) * options.num_repeats, "prompts")
        for prompt_len in options.prompt_lens:
            progress.rename(f"prompts of {prompt_len} tokens")
            records: list[ClientRecord] = []
            before = metric_sums(await client.metrics_text())
            for _ in range(options.num_repeats):
                prompt, num_tokens = await prompts.make(prompt_len)
                planned = PlannedRequest(prompt=prompt, num_input_tokens=num_tokens, max_tokens=options.max_tokens)
                await run_open_loop([planned], send, records)
            after = metric_sums(await client.metrics_text())
            costs.append(handoff_cost(prompt_len, records, metric_deltas(before, after)))


def handoff_cost(prompt_len: int, records: Sequence[ClientRecord], deltas: dict[str, float]) -> HandoffCost:
    """Combine what the client saw with what the server's metrics gained meanwhile."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    ttfts_s = [ttft_s for record in completed if (ttft_s := record.times.ttft_s) is not None]
    ttft = summarise(ttfts_s) if ttfts_s else None
    num_handoffs = round(deltas.get("relevo:handoff_seconds_count", 0.0))
    num_bytes = deltas.get("relevo:kv_transfer_bytes_total", 0.0)

    def per_handoff(total: float | None) -> float | None:
        return total / num_handoffs if num_handoffs and total is not None else None

    handoff_s = per_handoff(deltas.get("relevo:handoff_seconds_sum"))
    return HandoffCost(
        prompt_len=prompt_len,
        num_completed=len(completed),
        num_failed=len(records) - len(completed),
        client_ttft_s=ttft,
        num_handoffs=num_handoffs,
        handoff_s=handoff_s,
        transfer_s=per_handoff(_transfer_sum_s(deltas)),
        transferred_bytes=per_handoff(num_bytes),
        handoff_share_of_ttft=handoff_s / ttft.mean if ttft and ttft.mean and handoff_s is not None else None,
    )


def _transfer_sum_s(deltas: dict[str, float]) -> float | None:
    names = ("relevo:kv_transfer_seconds_sum", "relevo:kv_transfer_seconds_total", "relevo:kv_transfer_seconds")
    return next((deltas[name] for name in names if name in deltas), None)


def handoff_table(costs: Sequence[HandoffCost]) -> Table:
    table = Table(title="Handoff cost by prompt length, ms", title_justify="left")
    headings = (
        "tokens",
        "ok",
        "failed",
        "TTFT mean",
        "TTFT p50",
        "TTFT max",
        "handoffs",
        "handoff",
        "share",
        "transfer",
        "MB",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for cost in costs:
        ttft = cost.client_ttft_s
        share, num_bytes = cost.handoff_share_of_ttft, cost.transferred_bytes
        table.add_row(
            str(cost.prompt_len),
            str(cost.num_completed),
            str(cost.num_failed),
            *(milliseconds(value) for value in ((ttft.mean, ttft.p50, ttft.max) if ttft else (None,) * 3)),
            str(cost.num_handoffs),
            milliseconds(cost.handoff_s),
            "-" if share is None else f"{100 * share:.1f} %",
            milliseconds(cost.transfer_s),
            "-" if num_bytes is None else f"{num_bytes / 1e6:.1f}",
        )
    return table
