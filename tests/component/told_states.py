"""States as a server tells them, for what watches it."""

from __future__ import annotations

import msgspec

from relevo.gateway.console.state import (
    Blocks,
    ClassLine,
    Costs,
    Decision,
    Gateway,
    Latency,
    Model,
    ModelTotals,
    Percentiles,
    Requests,
    RequestSummary,
    RoleCount,
    Server,
    Session,
    State,
    Viewer,
    Worker,
    WorkerRates,
    WorkerTotals,
)
from relevo.top import state as read

NOW_S = 1_790_000_000.0
FAST, SLOW = (
    Costs(base_s=0.008, per_token_s=2e-4, per_kv_token_s=1e-7),
    Costs(base_s=0.02, per_token_s=5e-4, per_kv_token_s=2e-7),
)
CAUSES = {
    "line": "The first token took 6.20 s, of which 4.10 s in the gateway's line: 12 requests were ahead.",
    "long_neighbour": "A prompt of 9,210 tokens of others shared its steps: the worst gap took 0.84 s.",
    "own_prompt": "Its prompt has 8,120 tokens, of which none was cached.",
    "preemption": "It lost its blocks to another request once and started over: 2.2 s.",
    "slow_link": "The handoff took 1.3 s: 402 MB went over the network.",
    "nothing": "It took what its own tokens take.",
}


def percentiles(p50_s: float, num_samples: int = 500) -> Percentiles:
    return Percentiles(num_samples=num_samples, p50_s=p50_s, p90_s=2 * p50_s, p99_s=4 * p50_s)


def worker(worker_id: str, role: str = "decode", **parts: object) -> Worker:
    is_prefill = role == "prefill"
    told: dict[str, object] = {
        "worker_id": worker_id,
        "model": "qwen2.5-coder-0.5b",
        "role": role,
        "is_ready": True,
        "why_not_ready": "",
        "epoch": 1,
        "num_running": 0 if is_prefill else 14,
        "num_waiting": 3 if is_prefill else 0,
        "num_reserved": 0,
        "num_waiting_prefill_tokens": 0,
        "num_decode_kv_tokens": 0,
        "max_running": None,
        "step_budget_tokens": 512,
        "blocks": Blocks(
            num_total=1000, num_held=180 if is_prefill else 620, num_reusable=100, num_free=280, num_quarantined=0
        ),
        "totals": WorkerTotals(),
        "rates": WorkerRates(
            window_s=5.0,
            prefill_tokens_per_s=2410.0 if is_prefill else 0.0,
            generation_tokens_per_s=4.0 if is_prefill else 388.0,
            hit_fraction=None if is_prefill else 0.61,
        ),
        "costs": FAST,
        "itl": Percentiles() if is_prefill else percentiles(0.034),
        "busy_fraction": 0.91 if is_prefill else 0.97,
        "limit": "products" if is_prefill else "bandwidth",
        "limit_fraction": 0.62 if is_prefill else 0.71,
    }
    return Worker(**told | parts)  # type: ignore[arg-type]


def summary(number: int, **parts: object) -> RequestSummary:
    cause = list(CAUSES)[number % len(CAUSES)]
    told: dict[str, object] = {
        "request_id": f"chatcmpl-{number:04x}{number * 7919 % 65536:04x}",
        "gateway_id": "",
        "model": "qwen2.5-coder-0.5b",
        "tenant": ("acme", "globex", "initech")[number % 3],
        "started_at_unix_s": NOW_S - 30 - number,
        "phase": "ended",
        "num_prompt_tokens": 900 + 731 * number,
        "num_output_tokens": 40 + 17 * number,
        "ttft_s": 0.4 + 0.31 * number,
        "e2e_s": 1.9 + 0.83 * number,
        "cause": cause,
        "sentence": CAUSES[cause],
    }
    return RequestSummary(**told | parts)  # type: ignore[arg-type]


def running(number: int, phase: str = "decode") -> RequestSummary:
    return summary(
        100 + number, phase=phase, cause="", sentence="", e2e_s=1.0 + number, ttft_s=None if phase == "line" else 0.3
    )


def decisions(first: int = 1) -> tuple[Decision, ...]:
    told = (
        ("route", "decode-0", "holds 1,840 of 2,112 tokens; 120 ms sooner than decode-1"),
        ("prefill", "prefill-1", "fastest: 310 ms to the first token, 0 tokens cached"),
        ("refuse", "", "the line is full: 256 requests wait"),
        ("wait", "", "no worker has room for 9,210 tokens"),
    )
    return tuple(
        Decision(
            number=first + index,
            gateway_id="",
            at_unix_s=NOW_S - 8 + index,
            model="qwen2.5-coder-0.5b",
            kind=kind,
            reason=reason,
            worker_id=worker_id,
            request_id=f"chatcmpl-{first + index:08x}",
        )
        for index, (kind, worker_id, reason) in enumerate(told)
    )


def session(number: int, **parts: object) -> Session:
    told: dict[str, object] = {
        "session": f"{number * 2654435761 % 2**48:012x}",
        "model": "qwen2.5-coder-0.5b",
        "tenant": ("acme", "globex", "initech")[number % 3],
        "home_worker_id": f"decode-{number % 2}",
        "num_prompt_tokens": 2000 + 97 * number,
        "num_cached_tokens": 1500 + 80 * number,
        "num_requests": 3 + number % 19,
        "last_seen_unix_s": NOW_S - 1.5 * number,
    }
    return Session(**told | parts)  # type: ignore[arg-type]


def state(**parts: object) -> State:
    workers = (
        worker("prefill-0", "prefill"),
        worker("prefill-1", "prefill", busy_fraction=0.34, limit_fraction=0.21, num_waiting=0),
        worker("decode-0"),
        worker("decode-1", costs=SLOW, itl=percentiles(0.081), busy_fraction=0.99, limit_fraction=0.28),
    )
    told: dict[str, object] = {
        "at_unix_s": NOW_S,
        "viewer": Viewer(sees_all=True, is_admin=True),
        "server": Server(
            version="0.1.0",
            gateway_id="",
            started_at_unix_s=int(NOW_S) - 11_532,
            uptime_s=11_532.0,
            is_restarted=False,
            is_draining=False,
            is_ready=True,
        ),
        "gateways": (Gateway(gateway_id="", answers=True, is_ready=True, num_in_flight=31),),
        "models": (
            Model(
                name="qwen2.5-coder-0.5b",
                names=("qwen2.5-coder-0.5b",),
                is_ready=True,
                reason="",
                topology="2p2d",
                roles={
                    "prefill": RoleCount(num_workers=2, num_ready=2),
                    "decode": RoleCount(num_workers=2, num_ready=2),
                },
                max_model_len=32768,
                num_queued=4,
                num_in_flight=31,
                totals=ModelTotals(),
            ),
        ),
        "workers": workers,
        "flows": (),
        "latency": (
            Latency(
                model="",
                ttft=percentiles(0.182),
                itl=percentiles(0.036),
                e2e=percentiles(3.2),
                requests_per_s=2.4,
                output_tokens_per_s=776.0,
                hit_fraction=0.58,
            ),
        ),
        "history": None,
        "lines": (
            ClassLine(model="qwen2.5-coder-0.5b", class_name="interactive", num_waiting=1, oldest_wait_s=0.4),
            ClassLine(model="qwen2.5-coder-0.5b", class_name="batch", num_waiting=3, oldest_wait_s=12.0),
        ),
        "tenants": (),
        "budgets": (),
        "decisions": decisions(),
        "requests": Requests(
            num_in_flight=31,
            in_flight=(running(1), running(2, "prefill"), running(3, "line")),
            slowest=tuple(summary(number) for number in range(20)),
        ),
        "sessions": tuple(session(number) for number in range(40)),
    }
    return State(**told | parts)  # type: ignore[arg-type]


def as_read(told: State) -> read.State:
    return msgspec.json.decode(msgspec.json.encode(told), type=read.State)
