"""What a hostile tenant sends, as data: parameters, headers, sizes and timings that take, or might take, from others.

Used on virtual time (test_tenants) and against real processes (e2e/test_hostile_tenant). A pattern is one kind of
request, how often it comes and how its client behaves. Prompts stay below 8 KB, so that they fit small models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    name: str
    body: dict[str, Any] | bytes = field(default_factory=dict)  # beside model, prompt and stream
    headers: dict[str, str] = field(default_factory=dict)
    path: str = "/v1/completions"
    prompt_chars: int = 24
    is_same_prompt: bool = False  # as the other tenant's, else its own
    num_clients: int = 12  # each sends its next request when the last has ended
    pause_s: float = 0.0  # between them
    abort_after: int | None = None  # chunks; then the client goes
    read_every_s: float = 0.0  # how slowly it reads
    is_streamed: bool = True


LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
SHORT: dict[str, Any] = {"max_tokens": 4}

PATTERNS: tuple[Pattern, ...] = (
    # ---- sizes
    Pattern(name="long streams in every slot", body=LONG, num_clients=40),
    Pattern(name="n as large as the slots", body=LONG | {"n": 8}),
    Pattern(name="n larger than the slots", body={"max_tokens": 60, "ignore_eos": True, "n": 32}, num_clients=4),
    Pattern(name="n with log probabilities", body={"max_tokens": 40, "n": 8, "logprobs": 5}, num_clients=4),
    Pattern(name="giant prompts", body=SHORT, prompt_chars=4000, num_clients=6),
    Pattern(name="giant prompts, one at a time", body=SHORT, prompt_chars=7000, num_clients=1),
    Pattern(name="giant prompts and long answers", body=LONG, prompt_chars=3000, num_clients=6),
    Pattern(name="prompts that need nearly every block", body=LONG, prompt_chars=7800, num_clients=3),
    Pattern(name="many tiny requests", body={"max_tokens": 1}, prompt_chars=1, num_clients=30, pause_s=0.3),
    Pattern(name="many prompts in one request", body=SHORT | {"prompt": ["x" * 40] * 16}, num_clients=4),
    Pattern(name="all that fits into the context", body={"max_tokens": 7000, "ignore_eos": True}, num_clients=12),
    # ---- order
    Pattern(name="priority in a header", body=LONG, headers={"x-relevo-priority": "-1"}, pause_s=0.02),
    Pattern(name="priority in vLLM's header", body=LONG, headers={"x-vllm-priority": "-2147483647"}, pause_s=0.02),
    Pattern(name="priority in the body", body=LONG | {"priority": -1000}, pause_s=0.02),
    Pattern(name="priority beyond every bound", body=LONG | {"priority": -(2**63)}, pause_s=0.02),
    Pattern(name="a low priority of its own", body=LONG | {"priority": 7}, num_clients=40),
    Pattern(name="batch class", body=LONG, headers={"x-relevo-class": "batch"}, num_clients=40),
    Pattern(name="batch tier", body=LONG | {"service_tier": "flex"}, num_clients=40),
    Pattern(name="the other's fairness id", body=LONG, headers={"x-gateway-inference-fairness-id": "victim"}),
    # ---- times
    Pattern(name="deadlines of a millisecond", body=LONG, headers={"x-request-timeout": "0.001"}, pause_s=0.01),
    Pattern(name="deadlines in the middle of streams", body=LONG, headers={"x-request-timeout": "0.5"}),
    Pattern(name="objectives that cannot be met", body=LONG, headers={"x-slo-ttft-ms": "1"}, pause_s=0.01),
    Pattern(name="a pace that cannot be met", body=LONG, headers={"x-slo-tpot-ms": "0.01"}, pause_s=0.01),
    Pattern(name="bursts", body={"max_tokens": 20}, num_clients=60, pause_s=3.0),
    Pattern(name="again at once after every refusal", body=LONG, num_clients=60, pause_s=0.2),
    # ---- aborts
    Pattern(name="aborts before the first token", body=LONG, abort_after=0, pause_s=0.1, num_clients=24),
    Pattern(name="aborts at the first token", body=LONG, abort_after=1, num_clients=24),
    Pattern(name="aborts in the middle", body=LONG, abort_after=20, num_clients=24),
    Pattern(name="aborts of giant prompts", body=LONG, prompt_chars=6000, abort_after=0, pause_s=0.5),
    Pattern(name="aborts of many continuations", body=LONG | {"n": 16}, abort_after=3),
    # ---- clients
    Pattern(name="slow reading", body=LONG, read_every_s=0.5, num_clients=24),
    Pattern(name="reading nothing", body=LONG, read_every_s=30.0, num_clients=24),
    Pattern(name="answers in one piece", body=LONG, is_streamed=False, num_clients=24),
    # ---- the other's names
    Pattern(name="the other's session", body=LONG, headers={"x-session-affinity": "victim"}, num_clients=24),
    Pattern(name="the other's cache salt", body=SHORT | {"cache_salt": "victim"}, is_same_prompt=True),
    Pattern(name="the other's prompts", body=SHORT, is_same_prompt=True, pause_s=0.05),
    Pattern(name="the other's request ids", body=SHORT, headers={"x-request-id": "victim-0"}, pause_s=0.05),
    Pattern(name="the other's user", body=SHORT | {"user": "victim", "prompt_cache_key": "victim"}, pause_s=0.05),
    Pattern(name="asking for the route", body=SHORT, headers={"x-relevo-explain": "1"}, pause_s=0.05),
    # ---- sampling
    Pattern(name="bias on many ids", body=LONG | {"logit_bias": {str(i): 1 for i in range(200)}}),
    Pattern(
        name="bias beyond every bound", body=LONG | {"logit_bias": {str(i): 1 for i in range(20_000)}}, pause_s=0.2
    ),
    Pattern(name="many stop strings", body=LONG | {"stop": ["stop", "halt", "end", "no"]}),
    Pattern(name="stop ids beyond every bound", body=LONG | {"stop_token_ids": list(range(20_000))}, pause_s=0.2),
    Pattern(name="penalties", body=LONG | {"frequency_penalty": 2.0, "repetition_penalty": 1.9}),
    Pattern(name="least answers of full length", body={"max_tokens": 400, "min_tokens": 400}),
    Pattern(name="log probabilities beyond every bound", body=SHORT | {"logprobs": 10**6}, pause_s=0.02),
    # ---- bodies
    Pattern(name="bodies that are no JSON", body=b"{" * 2000, pause_s=0.02),
    Pattern(name="bodies that are deep", body=b'{"model": ' + b"[" * 3000, pause_s=0.02),
    Pattern(name="fields of wrong types", body={"max_tokens": "many", "n": []}, pause_s=0.02),
    Pattern(name="n beyond every bound", body={"n": 10**9}, pause_s=0.1),
    Pattern(name="no such model", body=SHORT | {"model": "other"}, pause_s=0.02),
    Pattern(name="tokenizing", path="/tokenize", prompt_chars=7000, is_streamed=False, pause_s=0.2),
)
