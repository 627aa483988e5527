"""What would help against each cause: a flag of `relevo serve`, a header of the client, or where to look.

Every flag that is named here exists, which a test checks. Source: docs/guides/ and docs/settings.md.
"""

from __future__ import annotations

from relevo.core.timeline import HitsLost
from relevo.policy.slowness.words import SlowCause

_MORE_KV = "more KV memory (--kv-cache-memory-bytes or --num-kv-blocks)"

_ADVICE = {
    SlowCause.NOTHING: "",
    SlowCause.OWN_PROMPT: "Static text first, and x-session-affinity, let the next request find it cached; otherwise "
    "a shorter prompt, or more cores for the worker (--cores).",
    SlowCause.OWN_OUTPUT: "A smaller max_tokens, or a faster machine: so many tokens take so long here.",
    SlowCause.LINE: "The workers were full: more of them (--topology), more streams on each (--max-num-seqs) if slots "
    "were short and memory lasts, or a better place in line: x-relevo-priority, --tenant-weight.",
    SlowCause.ROOM: f"Decode workers need {_MORE_KV}, or there have to be more of them (--topology).",
    SlowCause.NO_WORKER: "GET /ready says which worker is missing and why; with two of each role (--topology 2p2d) one "
    "may restart unnoticed.",
    SlowCause.WORKER_QUEUE: "More workers that compute prompts (--topology), or a smaller --dispatch-ahead-s: then "
    "prompts wait in the gateway, in fair order.",
    SlowCause.EVICTED_PREFIX: f"Its prefix was pushed out by others: {_MORE_KV} keeps it longer.",
    SlowCause.MOVED_PREFIX: "x-session-affinity keeps a conversation on its worker; how much that may cost is "
    "--affinity-max-penalty-s and --affinity-load-factor.",
    SlowCause.SLOW_LINK: "Workers of one machine hand over without copying (--kv-transport shm); between machines "
    "`relevo bench transport` measures the link.",
    SlowCause.PREEMPTION: f"Fewer streams at once (--max-num-seqs), or {_MORE_KV}, so that none has to give up its "
    "blocks.",
    SlowCause.WORKER_LOST: "The server's log says why the worker ended. One that hangs is given up after "
    "--heartbeat-timeout-s.",
    SlowCause.LONG_NEIGHBOUR: "Prefill workers of their own (--topology 1p1d) keep prompts out of running streams; "
    "--max-prefill-tokens bounds what a step takes of them.",
    SlowCause.CROWDED_STEPS: "Fewer streams on a worker (--max-num-seqs), or more workers that decode (--topology).",
    SlowCause.SLOW_STEPS: "The worker stood still, or something else took its cores: look at the machine's load, "
    "`relevo doctor`, --cores.",
    SlowCause.SLOW_CLIENT: "Nothing on this side: the client, or a proxy before it, read slowly. One that stops is cut "
    "off after --stall-timeout-s.",
    SlowCause.GATEWAY: "More gateway processes (--gateways), if the core of one is busy; `relevo bench gateway` "
    "measures it.",
    SlowCause.REFUSED: "Ask again after the answer's Retry-After; who may wait is set by --max-num-queued-reqs, "
    "--max-num-queued-tokens and --max-queue-ttft-s.",
}

_IN_DETAIL = {
    (SlowCause.ROOM, "slot"): "All slots of the worker were taken: more streams at once (--max-num-seqs) while memory "
    "lasts, or more workers that decode (--topology).",
    (SlowCause.MOVED_PREFIX, HitsLost.WORKER_LOST.value): "Caches end with their worker: the server's log says why it "
    "ended, and the next turn finds this one's.",
    (SlowCause.LONG_NEIGHBOUR, "prompt"): "More workers that compute prompts (--topology), so that fewer share a step.",
    (SlowCause.GATEWAY, "settle"): "The row in the usage ledger is kept before the answer ends: look at the disk or "
    "database behind --data-dir or --database-url, and at --ledger-fsync.",
}


def advice_for(cause: SlowCause, detail: str = "") -> str:
    return _IN_DETAIL.get((cause, detail), _ADVICE[cause])
