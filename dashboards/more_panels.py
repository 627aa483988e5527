"""The dashboards of caches, of who waits and is refused, and of workers; see `panels`."""

from __future__ import annotations

from panels import (
    BLUE,
    BYTES_PER_S,
    CLASSES,
    ENGINE_LABELS,
    ENGINE_LEGEND,
    GREEN,
    GREY,
    ORANGE,
    PER_S,
    PRODUCTS,
    READS,
    RED,
    REQUEST_LABELS,
    ROLELESS_LABELS,
    SERVER_LABELS,
    SKY,
    TOKENS_PER_S,
    WORKER_LABELS,
    WORKER_LEGEND,
    Board,
    Panel,
    ask,
    latencies,
    of_limit,
    quantile,
    quotient,
    rate,
)

_LOOKED_UP = rate("vllm:prefix_cache_queries_total", ENGINE_LABELS, "model_name, engine")
_FOUND = rate("vllm:prefix_cache_hits_total", ENGINE_LABELS, "model_name, engine")

CACHING = Board(
    uid="relevo-caching",
    title="Relevo: caching",
    says="What of the prompts was found in a cache, and how full the KV cache is.",
    rows=(
        (
            "Prompts",
            (
                Panel(
                    title="Prompt tokens found in a cache",
                    unit="percentunit",
                    most=1,
                    says="Share of prompt tokens that no worker had to compute; normal is high for conversations and agents, low for single questions.",
                    queries=(
                        ask(
                            quotient(
                                rate("vllm:prompt_tokens_cached_total", REQUEST_LABELS),
                                rate("vllm:prompt_tokens_total", REQUEST_LABELS),
                            ),
                            "cached",
                        ),
                    ),
                ),
                Panel(
                    title="Prompt tokens, cached and computed",
                    unit=TOKENS_PER_S,
                    is_stacked=True,
                    says="Prompt tokens of ended requests per second by where they came from; normal is a steady proportion.",
                    queries=(
                        ask(rate("vllm:prompt_tokens_cached_total", REQUEST_LABELS), "cached"),
                        ask(
                            f"{rate('vllm:prompt_tokens_total', REQUEST_LABELS)} - "
                            f"{rate('vllm:prompt_tokens_cached_total', REQUEST_LABELS)}",
                            "computed",
                        ),
                    ),
                ),
                Panel(
                    title="Found by each worker",
                    unit="percentunit",
                    most=1,
                    says="Share of the prompt tokens looked up in a worker's prefix cache that were there; normal is alike on workers of one role.",
                    queries=(ask(quotient(_FOUND, _LOOKED_UP), ENGINE_LEGEND),),
                ),
                Panel(
                    title="Tokens to compute per request",
                    unit="short",
                    says="Prompt tokens of a completed request that were not found in a cache; normal is a turn's new text in conversations.",
                    queries=latencies("vllm:request_prefill_kv_computed_tokens"),
                ),
            ),
        ),
        (
            "KV cache",
            (
                Panel(
                    title="KV cache used",
                    unit="percentunit",
                    most=1,
                    thresholds=(0.85, 0.95),
                    says="Share of a worker's KV blocks that running requests hold; normal is below nine tenths, for blocks that are only cached do not count.",
                    queries=(
                        ask(
                            f"max by (model_name, engine) (vllm:kv_cache_usage_perc{{{ENGINE_LABELS}}})", ENGINE_LEGEND
                        ),
                    ),
                ),
                Panel(
                    title="KV blocks by state",
                    unit="short",
                    is_stacked=True,
                    colours=(("held", BLUE), ("reusable", SKY), ("free", GREY), ("quarantined", RED)),
                    says="KV blocks of the chosen workers: held by requests, cached and reusable, free, or not to be touched yet; normal is next to none quarantined.",
                    queries=(ask(f"sum by (state) (relevo:blocks{{{ROLELESS_LABELS}}})", "{{state}}"),),
                ),
                Panel(
                    title="Preemptions",
                    unit=PER_S,
                    says="Continuations per second that lost their blocks to others and start over; normal is none.",
                    queries=(
                        ask(rate("vllm:num_preemptions_total", ENGINE_LABELS, "model_name, engine"), ENGINE_LEGEND),
                    ),
                ),
            ),
        ),
    ),
)

_NO_TENANTS = "tenants are not told apart: the series exist with --metrics-by-tenant"


def _by_tenant(name: str) -> str:
    return f"topk(10, {rate(name, REQUEST_LABELS, 'tenant')})"


TENANTS = Board(
    uid="relevo-tenants",
    title="Relevo: tenants",
    says="Who waits, who is refused and what is billed, over all tenants; and by tenant with --metrics-by-tenant, because "
    "their names are private. `relevo usage --by tenant` always tells them apart.",
    rows=(
        (
            "Waiting and refused",
            (
                Panel(
                    title="Requests in line",
                    unit="short",
                    colours=CLASSES,
                    says="Requests that the gateway holds back until it is their turn, by class; normal is none interactive, and batch as it comes.",
                    queries=(ask(f"sum by (class) (relevo:requests_in_line{{{REQUEST_LABELS}}})", "{{class}}"),),
                ),
                Panel(
                    title="Longest wait",
                    unit="s",
                    colours=CLASSES,
                    says="How long the first request in line has waited, by class; normal is below a second for interactive ones.",
                    queries=(ask(f"max by (class) (relevo:oldest_wait_seconds{{{REQUEST_LABELS}}})", "{{class}}"),),
                ),
                Panel(
                    title="Refused by reason",
                    unit="reqps",
                    is_stacked=True,
                    says="Requests per second that were refused or turned away by the limit that did it; normal is none (reasons: guides/overload.md).",
                    queries=(ask(rate("vllm:admission_rejections_total", REQUEST_LABELS, "reason"), "{{reason}}"),),
                ),
                Panel(
                    title="Deadlines missed",
                    unit="reqps",
                    colours=(("waiting", ORANGE), ("running", RED)),
                    says="Requests per second whose client's time was over while they waited or ran; normal is none.",
                    queries=(ask(rate("relevo:deadline_misses_total", REQUEST_LABELS, "when"), "{{when}}"),),
                ),
            ),
        ),
        (
            "What is asked for",
            (
                Panel(
                    title="Prompt length",
                    unit="short",
                    says="Prompt tokens of completed requests; normal is what your clients send.",
                    queries=latencies("vllm:request_prompt_tokens"),
                ),
                Panel(
                    title="Output length",
                    unit="short",
                    says="Output tokens of completed requests beside the most that was asked for; normal is an answer well below its limit.",
                    queries=(
                        ask(quantile(0.5, "vllm:request_generation_tokens"), "p50"),
                        ask(quantile(0.95, "vllm:request_generation_tokens"), "p95"),
                        ask(quantile(0.95, "vllm:request_params_max_tokens"), "max_tokens, p95"),
                    ),
                ),
                Panel(
                    title="Answers 4xx by path",
                    unit="reqps",
                    says="HTTP answers per second that blame the client, by path: keys that are wrong, budgets that are spent, limits; normal is few.",
                    queries=(
                        ask(rate("http_requests_total", SERVER_LABELS + ',status="4xx"', "handler"), "{{handler}}"),
                    ),
                ),
            ),
        ),
        (
            "By tenant",
            (
                Panel(
                    title="Requests by tenant",
                    unit="reqps",
                    is_stacked=True,
                    none_means=_NO_TENANTS,
                    says="Ended requests per second of the ten tenants that have most; normal is what they agreed to, and no data without --metrics-by-tenant.",
                    queries=(ask(_by_tenant("relevo:tenant_requests_total"), "{{tenant}}"),),
                ),
                Panel(
                    title="Prompt tokens by tenant",
                    unit=TOKENS_PER_S,
                    is_stacked=True,
                    none_means=_NO_TENANTS,
                    says="Prompt tokens per second of the ten tenants that have most, less those found in a cache; normal is what they agreed to.",
                    queries=(
                        ask(
                            f"topk(10, {rate('relevo:tenant_prompt_tokens_total', REQUEST_LABELS, 'tenant')} - "
                            f"{rate('relevo:tenant_cached_tokens_total', REQUEST_LABELS, 'tenant')})",
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    title="Output tokens by tenant",
                    unit=TOKENS_PER_S,
                    is_stacked=True,
                    none_means=_NO_TENANTS,
                    says="Output tokens per second of the ten tenants that have most; normal is what they agreed to.",
                    queries=(ask(_by_tenant("relevo:tenant_output_tokens_total"), "{{tenant}}"),),
                ),
            ),
        ),
        (
            "Usage ledger",
            (
                Panel(
                    title="Rows by outcome",
                    unit="suffix: rows/s",
                    is_stacked=True,
                    colours=(("finished", BLUE), ("aborted", ORANGE), ("failed", RED)),
                    says="Rows kept per second, one for each admitted request, by how it ended; normal is the rate of ended requests.",
                    queries=(ask(rate("relevo:ledger_rows_total", SERVER_LABELS, "outcome"), "{{outcome}}"),),
                ),
                Panel(
                    title="Commit",
                    unit="s",
                    says="Duration of a transaction of the ledger, for which the end of an answer waits; normal is milliseconds.",
                    queries=tuple(
                        ask(quantile(q, "relevo:ledger_commit_seconds", SERVER_LABELS), f"p{q * 100:g}")
                        for q in (0.5, 0.95, 0.99)
                    ),
                ),
                Panel(
                    title="Rows not kept yet",
                    unit="short",
                    says="Rows that are not known to be kept; normal is a few, and back to none within a second.",
                    queries=(ask(f"sum(relevo:ledger_pending_rows{{{SERVER_LABELS}}})", "pending"),),
                ),
                Panel(
                    title="Ledger trouble",
                    unit=PER_S,
                    says="Transactions per second that failed, and rows that went to the journal instead; normal is none.",
                    queries=(
                        ask(rate("relevo:ledger_write_failures_total", SERVER_LABELS), "failed transactions"),
                        ask(
                            rate("relevo:ledger_journal_rows_total", SERVER_LABELS + ',event="written"'),
                            "to the journal",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Connections",
            (
                Panel(
                    title="Connections open",
                    unit="short",
                    says="Open connections of clients; normal is about the number of clients, below --max-connections.",
                    queries=(ask(f"sum(relevo:http_connections{{{SERVER_LABELS}}})", "open"),),
                ),
                Panel(
                    title="Connections refused",
                    unit=PER_S,
                    colours=(("full", ORANGE), ("per_address", GREEN), ("descriptors", RED)),
                    says="Connections per second that were refused, or closed for others, by reason; normal is none.",
                    queries=(
                        ask(rate("relevo:http_connections_refused_total", SERVER_LABELS, "reason"), "{{reason}}"),
                    ),
                ),
                Panel(
                    title="Connections timed out",
                    unit=PER_S,
                    colours=(("headers", BLUE), ("slow_body", ORANGE), ("slow_reader", RED)),
                    says="Connections per second that ended because a client kept the server waiting, by what it owed; normal is few.",
                    queries=(
                        ask(
                            rate("relevo:http_connections_timed_out_total", SERVER_LABELS, "waited_for"),
                            "{{waited_for}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

_COSTS = {"step": "per step", "token": "per token computed", "kv_token": "per token of context"}

WORKERS = Board(
    uid="relevo-workers",
    title="Relevo: workers",
    says="Each worker: whether it is up, what it holds, how it computes, whom it turned away.",
    rows=(
        (
            "State",
            (
                Panel(
                    title="Worker up",
                    unit="bool_yes_no",
                    most=1,
                    says="Whether requests can be sent to a worker; normal is yes, except while it starts or drains.",
                    queries=(ask(f"min by (model_name, worker) (relevo:worker_up{{{WORKER_LABELS}}})", WORKER_LEGEND),),
                ),
                Panel(
                    title="Restarts within the hour",
                    unit="short",
                    says="How often a worker was started again within an hour; normal is never, or once after a drain.",
                    queries=(
                        ask(
                            f"sum by (model_name, worker) (increase(relevo:worker_restarts_total{{{ROLELESS_LABELS}}}[1h]))",
                            WORKER_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    title="Decoding",
                    unit="short",
                    says="Continuations that decode on a worker; normal is evenly over decode workers, below --max-num-seqs.",
                    queries=(
                        ask(
                            f"sum by (model_name, engine) (vllm:num_requests_running{{{ENGINE_LABELS}}})", ENGINE_LEGEND
                        ),
                    ),
                ),
                Panel(
                    title="Waiting",
                    unit="short",
                    says="Requests that wait at a worker for room or for their first chunk, or in the gateway before any worker; normal is few.",
                    queries=(
                        ask(
                            f"sum by (model_name, engine) (vllm:num_requests_waiting{{{REQUEST_LABELS}}})",
                            ENGINE_LEGEND,
                        ),
                    ),
                ),
            ),
        ),
        (
            "Computing",
            (
                Panel(
                    title="Largest step",
                    unit="percentunit",
                    most=1,
                    says="Tokens of the largest step since a worker's start, as a share of what a step may have; normal is near 1 on a prefill worker under load.",
                    queries=(
                        ask(
                            f"max by (model_name, worker) (relevo:largest_step_tokens{{{WORKER_LABELS}}}) / "
                            f"max by (model_name, worker) (relevo:step_budget_tokens{{{WORKER_LABELS}}})",
                            WORKER_LEGEND,
                        ),
                    ),
                ),
                *(
                    Panel(
                        title=f"Step time {words}",
                        unit="s",
                        says=f"Measured seconds {words}, by worker; normal is steady and alike on equal cores, a rise means a slower machine.",
                        queries=(
                            ask(
                                f'max by (model_name, worker) (relevo:step_cost_seconds{{{WORKER_LABELS},per="{per}"}})',
                                WORKER_LEGEND,
                            ),
                        ),
                    )
                    for per, words in _COSTS.items()
                ),
            ),
        ),
        (
            "Utilisation",
            (
                Panel(
                    title="Busy",
                    unit="percentunit",
                    most=1,
                    says="Share of the time that a worker spends in steps; normal is even over workers of one role, and near 1 under full load.",
                    queries=(
                        ask(
                            rate("relevo:worker_busy_seconds_total", WORKER_LABELS, "model_name, worker"), WORKER_LEGEND
                        ),
                    ),
                ),
                Panel(
                    title="Products, of their limit",
                    unit="percentunit",
                    says="Operations per second as a share of what a worker's cores can do at most; normal is high on workers that compute prompts, and no value where the limit is not known.",
                    queries=(ask(of_limit(*PRODUCTS, WORKER_LABELS), WORKER_LEGEND),),
                ),
                Panel(
                    title="Memory reads, of their limit",
                    unit="percentunit",
                    says="Bytes read per second as a share of what a worker's cores can read at most; normal is high on workers that decode, and no value where the limit is not known.",
                    queries=(ask(of_limit(*READS, WORKER_LABELS), WORKER_LEGEND),),
                ),
            ),
        ),
        (
            "Transfer and refusals",
            (
                Panel(
                    title="Transfer speed",
                    unit=BYTES_PER_S,
                    says="KV bytes over the time they were on their way, by the worker that sent them; normal is steady, no value while nothing is sent.",
                    queries=(
                        ask(
                            quotient(
                                rate("relevo:kv_transfer_bytes_total", WORKER_LABELS, "model_name, worker"),
                                rate("relevo:kv_transfer_seconds_total", WORKER_LABELS, "model_name, worker"),
                            ),
                            WORKER_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    title="Writes refused",
                    unit=PER_S,
                    says="KV writes per second that came after their right had ended; normal is none, or a few when requests are aborted or workers die.",
                    queries=(
                        ask(rate("relevo:refused_writes_total", ROLELESS_LABELS, "model_name, worker"), WORKER_LEGEND),
                    ),
                ),
                Panel(
                    title="Peers refused",
                    unit=PER_S,
                    says="Connections per second to workers' own ports that had no right to be there, by reason; normal is none.",
                    queries=(
                        ask(
                            rate("relevo:refused_connections_total", ROLELESS_LABELS, "door, reason"),
                            "{{door}}: {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests that met a fault",
                    unit=PER_S,
                    says="Requests per second that ended because the worker's own code raised; normal is none.",
                    queries=(
                        ask(rate("relevo:request_faults_total", ROLELESS_LABELS, "model_name, worker"), WORKER_LEGEND),
                    ),
                ),
            ),
        ),
    ),
)
