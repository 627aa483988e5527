"""What must be equal on all machines of a cluster, and what is only said. Pure.

Weights and tokenizer are compared by digest: a name says nothing about what is in a folder. Bits of logits differ
between instruction sets and backends, so a stream that moves between two such classes may not end as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from relevo.core.cluster import NodeEngine, NodeFacts, NodeWorker, worker_id_on
from relevo.policy.cluster.leases import MAX_SKEW_S

Named = TypeVar("Named", NodeWorker, NodeEngine)


class Denial(StrEnum):
    """Why a node is not taken in; label of a metric."""

    MODEL = "model"
    TOKENIZER = "tokenizer"
    LAYOUT = "layout"
    LENGTH = "length"
    VERSION = "version"
    PROTOCOL = "protocol"
    CLOCK = "clock"
    EPOCH = "epoch"  # another incarnation was accepted since
    ADDRESS = "address"  # it cannot be dialled back
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Mismatch:
    reason: Denial
    message: str
    is_final: bool = True  # time mends it, or a person


def mismatch(head: NodeFacts, node: NodeFacts, name: str, skew_s: float) -> Mismatch | None:
    """The first thing that must be equal and is not. `skew_s`: how far the node's clock is ahead."""
    if head.protocol_version != node.protocol_version:
        return Mismatch(
            Denial.PROTOCOL,
            f"{name} speaks version {node.protocol_version} of the protocol and this cluster {head.protocol_version}; "
            f"install Relevo {head.version} on it",
        )
    if _release(head.version) != _release(node.version):
        return Mismatch(
            Denial.VERSION,
            f"{name} runs Relevo {node.version} and this cluster {head.version}; install {head.version} on it",
        )
    if abs(skew_s) > MAX_SKEW_S:
        side = "ahead of" if skew_s > 0 else "behind"
        return Mismatch(
            Denial.CLOCK,
            f"the clock of {name} is {abs(skew_s):.1f} s {side} that of the head, {MAX_SKEW_S:g} s are allowed; "
            "set both by NTP",
            is_final=False,
        )
    if head.model_hash != node.model_hash:
        return Mismatch(
            Denial.MODEL,
            f"the weights on {name} ({node.model_name}, digest {_short(node.model_hash)}) are not those of this "
            f"cluster ({head.model_name}, digest {_short(head.model_hash)}); give it the same files",
        )
    if head.tokenizer_hash != node.tokenizer_hash:
        return Mismatch(
            Denial.TOKENIZER,
            f"the tokenizer on {name} (digest {_short(node.tokenizer_hash)}) is not that of this cluster "
            f"({_short(head.tokenizer_hash)}); give it the same files",
        )
    if head.layout is not None and node.layout is not None:
        differs = head.layout.mismatch(node.layout)
        if differs is not None:
            return Mismatch(Denial.LAYOUT, f"KV blocks of {name} do not fit this cluster's: {differs}")
    if node.layout is not None and node.max_model_len < head.max_model_len:
        return Mismatch(
            Denial.LENGTH,
            f"workers of {name} hold requests of {node.max_model_len} tokens, this cluster serves up to "
            f"{head.max_model_len}; give it more with --num-kv-blocks, or start the head with "
            f"--max-model-len {node.max_model_len}",
        )
    return None


def mixing(head: NodeFacts, node: NodeFacts, name: str) -> str:
    """Said where both compute and their last bits may differ; empty: they compute alike."""
    if not head.compute or not node.compute or head.compute == node.compute:
        return ""
    return (
        f"{name} computes with {node.compute} and the head with {head.compute}: a stream that continues on the other "
        "may differ from what it would have been"
    )


def _release(version: str) -> str:
    """Without what a build adds."""
    return version.partition("+")[0]


def _short(digest: str) -> str:
    return digest[:12] or "none"


def own_and_foreign(node: str, named: Sequence[Named]) -> tuple[tuple[Named, ...], tuple[str, ...]]:
    """(what a node says of its own workers, the workers of others that it names). What is said of those would send
    their prompts elsewhere."""
    prefix = worker_id_on(node, "")
    own = tuple(each for each in named if each.worker_id.startswith(prefix))
    return own, tuple(each.worker_id for each in named if not each.worker_id.startswith(prefix))
