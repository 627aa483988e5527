"""What each dashboard shows: its panels, their queries, units and descriptions.

Owns the questions that are asked of the metrics (docs/metrics.md) and what is told of the answers. Does not know how
Grafana draws them (`layout`). A description is one sentence: what is shown, and what is normal.
"""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's colours: told apart by people with every common kind of colour blindness.
BLUE, ORANGE, GREEN, RED, SKY, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#999999"

REQUEST_LABELS = 'job=~"$job",model_name=~"$model"'  # labels of what gateways measure
WORKER_LABELS = REQUEST_LABELS + ',worker=~"$worker",role=~"$role"'
ENGINE_LABELS = REQUEST_LABELS + ',engine=~"$worker",role=~"$role"'  # the same under vLLM's names
ROLELESS_LABELS = REQUEST_LABELS + ',worker=~"$worker"'
SERVER_LABELS = 'job=~"$job"'
WORKER_LEGEND, ENGINE_LEGEND = "{{model_name}} {{worker}}", "{{model_name}} {{engine}}"
TOKENS_PER_S, BYTES_PER_S, PER_S = "suffix: tok/s", "Bps", "suffix:/s"


@dataclass(frozen=True, kw_only=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    unit: str
    says: str
    queries: tuple[Query, ...]
    is_stat: bool = False
    is_stacked: bool = False
    thresholds: tuple[float, float] | None = None  # warning, bad; descending: low values are bad
    colours: tuple[tuple[str, str], ...] = ()  # by the name of a series, where one query gives several
    most: float | None = None
    none_means: str = ""  # why it may be empty when nothing is wrong


@dataclass(frozen=True, kw_only=True)
class Board:
    uid: str
    title: str
    says: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def ask(expr: str, legend: str = "") -> Query:
    return Query(expr=expr, legend=legend)


def rate(name: str, labels: str, by: str = "") -> str:
    total = f"sum by ({by}) " if by else "sum"
    return f"{total}(rate({name}{{{labels}}}[$__rate_interval]))"


def quantile(q: float, name: str, labels: str = REQUEST_LABELS) -> str:
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', labels, 'le')})"


def latencies(name: str) -> tuple[Query, ...]:
    return tuple(ask(quantile(q, name), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


def of_limit(name: str, limit: str, labels: str) -> str:
    """The rate of a counter of workers as a share of each one's own limit."""
    by = "model_name, worker"
    return quotient(rate(name, labels, by), f"max by ({by}) ({limit}{{{labels}}})")


def quotient(above: str, below: str) -> str:
    return f"{above} / {below}"


PRODUCTS = "relevo:worker_product_ops_total", "relevo:worker_product_limit_ops_per_second"
READS = "relevo:worker_read_bytes_total", "relevo:worker_read_limit_bytes_per_second"
_ENDED = rate("vllm:request_success_total", REQUEST_LABELS)
_FAILED = rate("vllm:request_success_total", REQUEST_LABELS + ',finished_reason="error"')
_REFUSED = rate("vllm:admission_rejections_total", REQUEST_LABELS)
_ANSWERS = rate("http_requests_total", SERVER_LABELS)
_5XX = rate("http_requests_total", SERVER_LABELS + ',status="5xx"')
_FINISHED = (("stop", BLUE), ("length", SKY), ("abort", ORANGE), ("error", RED))
CLASSES = (("interactive", BLUE), ("batch", ORANGE))

OVERVIEW = Board(
    uid="relevo-overview",
    title="Relevo: overview",
    says="Is the server well: traffic, errors, latencies, what waits.",
    rows=(
        (
            "Now",
            (
                Panel(
                    title="Requests ended",
                    unit="reqps",
                    is_stat=True,
                    says="Requests that ended per second, for any reason; normal is what your clients send.",
                    queries=(ask(_ENDED),),
                ),
                Panel(
                    title="Output tokens",
                    unit=TOKENS_PER_S,
                    is_stat=True,
                    says="Tokens drawn per second by all workers; normal grows with load until the workers are full.",
                    queries=(ask(rate("vllm:generation_tokens_total", REQUEST_LABELS)),),
                ),
                Panel(
                    title="First token, p95",
                    unit="s",
                    is_stat=True,
                    thresholds=(2, 5),
                    says="Nineteen of twenty requests had their first token sooner; normal is below what your users accept, two seconds by default.",
                    queries=(ask(quantile(0.95, "vllm:time_to_first_token_seconds")),),
                ),
                Panel(
                    title="Between tokens, p95",
                    unit="s",
                    is_stat=True,
                    thresholds=(0.1, 0.5),
                    says="Nineteen of twenty gaps between output tokens were shorter; normal is steady, a tenth of a second reads as fluent.",
                    queries=(ask(quantile(0.95, "vllm:inter_token_latency_seconds")),),
                ),
                Panel(
                    title="Failed requests",
                    unit="percentunit",
                    is_stat=True,
                    thresholds=(0.001, 0.02),
                    says="Share of ended requests that failed on the server's account; normal is none.",
                    queries=(ask(quotient(_FAILED, _ENDED)),),
                ),
                Panel(
                    title="Answers 5xx",
                    unit="percentunit",
                    is_stat=True,
                    thresholds=(0.001, 0.05),
                    says="Share of HTTP answers with a status of 500 or more; normal is none.",
                    queries=(ask(f"({_5XX} or 0 * {_ANSWERS}) / {_ANSWERS}"),),
                ),
                Panel(
                    title="Refused requests",
                    unit="percentunit",
                    is_stat=True,
                    thresholds=(0.01, 0.05),
                    says="Share of requests that were told to come back later; normal is none, except in bursts.",
                    queries=(ask(f"{_REFUSED} / ({_REFUSED} + {_ENDED})"),),
                ),
                Panel(
                    title="Workers ready",
                    unit="percentunit",
                    is_stat=True,
                    thresholds=(1, 0.5),
                    says="Share of workers that take requests; normal is all of them.",
                    queries=(ask(f"avg(relevo:worker_up{{{REQUEST_LABELS}}})"),),
                ),
            ),
        ),
        (
            "Traffic",
            (
                Panel(
                    title="Requests by how they ended",
                    unit="reqps",
                    is_stacked=True,
                    colours=_FINISHED,
                    says="Ended requests per second by finish reason; normal is stop and length, abort is a client that left, error is the server's fault.",
                    queries=(
                        ask(
                            rate("vllm:request_success_total", REQUEST_LABELS, "finished_reason"), "{{finished_reason}}"
                        ),
                    ),
                ),
                Panel(
                    title="Requests inside",
                    unit="short",
                    says="How many requests wait in the gateway, wait at workers and decode; normal is next to none waiting.",
                    queries=(
                        ask(f"sum(relevo:requests_in_line{{{REQUEST_LABELS}}})", "in the gateway's line"),
                        ask(
                            f'sum(vllm:num_requests_waiting{{{REQUEST_LABELS},engine!="gateway"}})',
                            "waiting at workers",
                        ),
                        ask(f"sum(vllm:num_requests_running{{{REQUEST_LABELS}}})", "decoding"),
                        ask(f"sum(relevo:requests_in_flight{{{REQUEST_LABELS}}})", "all that is held"),
                    ),
                ),
                Panel(
                    title="Tokens",
                    unit=TOKENS_PER_S,
                    says="Prompt tokens that were cached or computed, and output tokens, per second; normal is a steady proportion between them.",
                    queries=(
                        ask(rate("vllm:prompt_tokens_cached_total", REQUEST_LABELS), "prompt, cached"),
                        ask(rate("relevo:prefill_tokens_total", REQUEST_LABELS), "prompt, computed"),
                        ask(rate("vllm:generation_tokens_total", REQUEST_LABELS), "output"),
                    ),
                ),
                Panel(
                    title="HTTP answers by status",
                    unit="reqps",
                    is_stacked=True,
                    colours=(("2xx", BLUE), ("3xx", GREY), ("4xx", ORANGE), ("5xx", RED)),
                    says="HTTP answers per second by class of status, probes included; normal is 2xx.",
                    queries=(ask(rate("http_requests_total", SERVER_LABELS, "status"), "{{status}}"),),
                ),
            ),
        ),
        (
            "Latency",
            (
                Panel(
                    title="First token",
                    unit="s",
                    says="Time from accepting a request to its first output token; normal is flat, and p99 within a few times p50.",
                    queries=latencies("vllm:time_to_first_token_seconds"),
                ),
                Panel(
                    title="Between tokens",
                    unit="s",
                    says="Gaps between output tokens; normal is flat whatever prompts arrive, for they are computed elsewhere.",
                    queries=latencies("vllm:inter_token_latency_seconds"),
                ),
                Panel(
                    title="Whole requests",
                    unit="s",
                    says="Time from accepting a request to its end, of completed ones; normal depends on how long the answers are.",
                    queries=latencies("vllm:e2e_request_latency_seconds"),
                ),
                Panel(
                    title="Wait in line",
                    unit="s",
                    says="Wait in the gateway's line of requests that were then sent to a worker; normal is next to nothing, it grows when the workers are full.",
                    queries=latencies("relevo:line_wait_seconds"),
                ),
            ),
        ),
        (
            "Service",
            (
                Panel(
                    title="Can requests be taken?",
                    unit="bool_yes_no",
                    most=1,
                    says="Whether the usage ledger can be written and API keys can be read; normal is yes, without either no request is taken.",
                    queries=(
                        ask(f"min(relevo:ledger_up{{{SERVER_LABELS}}})", "ledger"),
                        ask(f"min(relevo:keys_up{{{SERVER_LABELS}}})", "keys"),
                    ),
                ),
                Panel(
                    title="Gateways up",
                    unit="bool_yes_no",
                    most=1,
                    none_means="there is one gateway: the series exist with --gateways 2 or more",
                    says="Which of several gateways answered the scraped one; normal is all, and no data with a single gateway.",
                    queries=(ask(f"min by (gateway) (relevo:gateway_up{{{SERVER_LABELS}}})", "{{gateway}}"),),
                ),
                Panel(
                    title="HTTP answers by path, p95",
                    unit="s",
                    says="Nineteen of twenty answers of a path took less, streams counted to their end; normal is milliseconds where no tokens are made.",
                    queries=(
                        ask(
                            f"histogram_quantile(0.95, "
                            f"{rate('http_request_duration_seconds_bucket', SERVER_LABELS, 'le, handler')})",
                            "{{handler}}",
                        ),
                    ),
                ),
                Panel(
                    title="Faults and lost log lines",
                    unit=PER_S,
                    says="Requests per second that ended because Relevo's own code raised, and log lines that were not written; normal is none.",
                    queries=(
                        ask(rate("relevo:gateway_request_faults_total", REQUEST_LABELS), "faults in gateways"),
                        ask(rate("relevo:request_faults_total", REQUEST_LABELS), "faults in workers"),
                        ask(rate("relevo:log_lines_not_written_total", SERVER_LABELS), "log lines not written"),
                    ),
                ),
            ),
        ),
    ),
)

_QUEUE, _PREFILL, _DECODE = (f"vllm:request_{stage}_time_seconds" for stage in ("queue", "prefill", "decode"))
_OUTCOMES = (("completed", BLUE), ("local", SKY), ("replayed", ORANGE), ("aborted", GREY), ("failed", RED))
_TRIED = rate("relevo:handoffs_total", REQUEST_LABELS + ',outcome=~"completed|failed|replayed"')

PREFILL_DECODE = Board(
    uid="relevo-prefill-decode",
    title="Relevo: prefill and decode",
    says="Where time goes between the stages, how much of their cores they use, and what the handoff costs.",
    rows=(
        (
            "Stages",
            (
                Panel(
                    title="Time by stage, p95",
                    unit="s",
                    says="The wait at a worker, the computing of the prompt and the decoding of a request; normal is a wait well below the prefill.",
                    queries=(
                        ask(quantile(0.95, _QUEUE), "waiting"),
                        ask(quantile(0.95, _PREFILL), "prefill"),
                        ask(quantile(0.95, _DECODE), "decode"),
                    ),
                ),
                Panel(
                    title="Mean time by stage",
                    unit="s",
                    says="The same as means, which tell what lies inside a bucket; normal is steady.",
                    queries=tuple(
                        ask(
                            quotient(rate(f"{name}_sum", REQUEST_LABELS), rate(f"{name}_count", REQUEST_LABELS)), legend
                        )
                        for name, legend in ((_QUEUE, "waiting"), (_PREFILL, "prefill"), (_DECODE, "decode"))
                    ),
                ),
                Panel(
                    title="Prompt tokens computed",
                    unit=TOKENS_PER_S,
                    says="Prompt tokens computed per second by worker; normal is most of it on prefill workers, evenly.",
                    queries=(
                        ask(rate("relevo:prefill_tokens_total", WORKER_LABELS, "model_name, worker"), WORKER_LEGEND),
                    ),
                ),
                Panel(
                    title="Tokens drawn",
                    unit=TOKENS_PER_S,
                    says="Tokens drawn per second by worker, of which prefill workers draw one per prompt; normal is evenly over decode workers.",
                    queries=(
                        ask(rate("relevo:decode_tokens_total", WORKER_LABELS, "model_name, worker"), WORKER_LEGEND),
                    ),
                ),
                Panel(
                    title="Steps",
                    unit=PER_S,
                    says="Forward passes per second by worker; normal is steady under steady load, and none when idle.",
                    queries=(ask(rate("relevo:steps_total", WORKER_LABELS, "model_name, worker"), WORKER_LEGEND),),
                ),
                Panel(
                    title="Tokens per step",
                    unit="short",
                    says="Mean tokens that a step computed by worker; normal is hundreds on prefill workers, and the running streams on decode workers.",
                    queries=(
                        ask(
                            f"({rate('relevo:prefill_tokens_total', WORKER_LABELS, 'model_name, worker')} + "
                            f"{rate('relevo:decode_tokens_total', WORKER_LABELS, 'model_name, worker')}) / "
                            f"{rate('relevo:steps_total', WORKER_LABELS, 'model_name, worker')}",
                            WORKER_LEGEND,
                        ),
                    ),
                ),
            ),
        ),
        (
            "Utilisation",
            (
                Panel(
                    title="Prefill: products, of their limit",
                    unit="percentunit",
                    thresholds=(0.85, 0.95),
                    says="Operations per second of workers that compute prompts, as a share of what their cores can do at most; normal is even, and no value where the limit is not known.",
                    queries=(ask(of_limit(*PRODUCTS, WORKER_LABELS + ',role!="decode"'), WORKER_LEGEND),),
                ),
                Panel(
                    title="Decode: memory reads, of their limit",
                    unit="percentunit",
                    thresholds=(0.85, 0.95),
                    says="Bytes per second that decoding workers read, as a share of what their cores can read at most; normal is even, and no value where the limit is not known.",
                    queries=(ask(of_limit(*READS, WORKER_LABELS + ',role!="prefill"'), WORKER_LEGEND),),
                ),
            ),
        ),
        (
            "Handoff",
            (
                Panel(
                    title="Handoffs by outcome",
                    unit="reqps",
                    is_stacked=True,
                    colours=_OUTCOMES,
                    says="Requests per second that were to change worker by what came of it; normal is completed, and local for prompts too short to be worth it.",
                    queries=(ask(rate("relevo:handoffs_total", REQUEST_LABELS, "outcome"), "{{outcome}}"),),
                ),
                Panel(
                    title="Handoffs that went wrong",
                    unit="percentunit",
                    thresholds=(0.005, 0.02),
                    says="Share of handoffs that failed or were computed again elsewhere; normal is none.",
                    queries=(
                        ask(
                            quotient(
                                rate("relevo:handoffs_total", REQUEST_LABELS + ',outcome=~"failed|replayed"'), _TRIED
                            ),
                            "failed or replayed",
                        ),
                    ),
                ),
                Panel(
                    title="Handoff",
                    unit="s",
                    says="Time from the prompt computed to decoding started on the other worker; normal is milliseconds in one box.",
                    queries=latencies("relevo:handoff_seconds"),
                ),
                Panel(
                    title="Of it, KV under way",
                    unit="s",
                    says="Time in which KV of a request was on its way; normal is a small part of the handoff.",
                    queries=latencies("relevo:handoff_transfer_seconds"),
                ),
                Panel(
                    title="KV handed over",
                    unit=BYTES_PER_S,
                    says="KV bytes per second by the worker that sent them; normal follows the prompt tokens computed.",
                    queries=(
                        ask(rate("relevo:kv_transfer_bytes_total", WORKER_LABELS, "model_name, worker"), WORKER_LEGEND),
                    ),
                ),
                Panel(
                    title="KV per handoff",
                    unit="bytes",
                    says="Mean KV that one request takes along; normal is the uncached prompt times the bytes per token of the model.",
                    queries=(
                        ask(
                            quotient(
                                rate("relevo:handoff_transfer_bytes_sum", REQUEST_LABELS),
                                rate("relevo:handoff_transfer_bytes_count", REQUEST_LABELS),
                            ),
                            "mean",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
