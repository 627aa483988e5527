"""Which of Relevo's promises hold with which engine: the one table, from which docs/guides/engines.md is made."""

from __future__ import annotations

from typing import NamedTuple

from relevo.policy.handoff.dialects import DIALECTS

ENGINES = ("relevo", "vllm", "sglang")


class Promise(NamedTuple):
    what: str
    relevo: str
    vllm: str
    sglang: str


_SAME = "yes"
PROMISES = (
    Promise("run against the real engine", "yes", "vLLM 0.32 on CPUs, NIXL pull", "no: against its protocol only"),
    Promise("prefill and decode split", _SAME, "NIXL pull; push and Mooncake as their sources say", "bootstrap rooms"),
    Promise(
        "short prompts computed where they are decoded", "by measured costs", "by measured costs", "no: it must split"
    ),
    Promise("routing by what is cached", _SAME, "with `events=`", "with `events=`"),
    Promise("admission, fair order, deadlines, priorities in line", _SAME, _SAME, _SAME),
    Promise("priorities inside the engine", _SAME, "no", "no"),
    Promise("`cached_tokens` and ledger", "exact", "exact; an estimate where a stop string ends the answer", "exact"),
    Promise("cache salt, tenants apart in the cache", _SAME, _SAME, "as its source says"),
    Promise(
        "greedy streams go on elsewhere after a death",
        "same bits",
        "same tokens, ties aside",
        "same tokens, ties aside",
    ),
    Promise("so do seeded ones", "same bits", "no: another draw from there on", "no: another draw from there on"),
    Promise(
        "so do frequency and presence penalties", "same bits", "no: they forget what was emitted before", "no: likewise"
    ),
    Promise("n > 1", "split", "not split: n streams on one engine", "n streams, each split"),
    Promise("log-probabilities", _SAME, _SAME, _SAME),
    Promise("log-probabilities of prompts", _SAME, "refused", "refused"),
    Promise("structured output, forced tool calls", _SAME, "refused", "refused"),
    Promise("a late fetch of KV is never asked for", "cannot happen", "our clock: lease less a quarter", "no lease"),
    Promise("drain", "worker leaves", "nothing new is sent there", "nothing new is sent there"),
)


def promises_markdown() -> str:
    """The table, and that of the dialects."""
    lines = ["| | Relevo's own engine | vLLM | SGLang |", "|---|---|---|---|"]
    lines += [f"| {each.what} | {each.relevo} | {each.vllm} | {each.sglang} |" for each in PROMISES]
    lines += ["", "| dialect | engine | asked | the decode engine must know the peer first | KV is kept |"]
    lines += ["|---|---|---|---|---|"]
    for name, dialect in DIALECTS.items():
        asked = "both at once" if dialect.is_concurrent else "one after the other"
        bound = "yes" if dialect.requires_peer_binding else "no"
        kept = "until it is fetched" if dialect.lease_s is None else f"for its lease; taken for {dialect.lease_s:g} s"
        lines.append(f"| `{name}` | {dialect.engine} | {asked} | {bound} | {kept} |")
    return "\n".join(lines) + "\n"
