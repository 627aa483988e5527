"""KV cache words: layout, blocks, and the right to write into somebody else's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relevo.core.ids import BlockId, RequestId, WorkerId

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint64": 8}
_SCALE_BYTES = {"int8": 4}  # per token and head: what the stored integers are multiplied with, float32


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one shape of cache. Only `full` attention exists today; windows and latents get a kind."""

    name: str
    kind: str  # "full"
    num_layers: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one block lies in memory: [L, 2 (K, V), K heads, S tokens, D], row-major, one contiguous run of bytes.

    With int8, the S * D integers of a head are followed by its S scales.
    """

    model_hash: str
    dtype: str  # a key of DTYPE_BYTES
    block_size: int  # S, tokens
    groups: tuple[KVGroup, ...]
    tensor_parallel_size: int = 1

    @property
    def bytes_per_token(self) -> int:
        element_bytes, scale_bytes = DTYPE_BYTES[self.dtype], _SCALE_BYTES.get(self.dtype, 0)
        return sum(g.num_layers * 2 * g.num_kv_heads * (g.head_size * element_bytes + scale_bytes) for g in self.groups)

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def mismatch(self, other: KVLayout) -> str | None:
        """One sentence that says why blocks of `other` cannot be used here; None if they can."""
        for name in ("model_hash", "dtype", "block_size", "groups", "tensor_parallel_size"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"KV layouts differ in {name}: {mine} here, {theirs} there; start both with the same value"
        return None


class BlockState(StrEnum):
    """Life of a block on the receiving side of a handoff (docs/architecture.md, section 4)."""

    RESERVED = "reserved"
    WRITING = "writing"
    SEALED = "sealed"
    OWNED = "owned"
    QUARANTINED = "quarantined"
    FREED = "freed"


class KVRefusal(StrEnum):
    """Why a connection to a worker's KV port ended before a block could be written over it."""

    PROTOCOL = "protocol"  # it did not speak the protocol
    SECRET = "secret"  # it does not know the secret of this start of the server
    TIMEOUT = "timeout"  # it did not finish its handshake in time
    LIMIT = "limit"  # too many were there
    INCARNATION = "incarnation"  # it knows the secret, but wanted an incarnation that is gone
    LAYOUT = "layout"  # it knows the secret, but its blocks do not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room on a decode worker for one request, and the right to write its blocks until `lease_s` has passed.

    `block_ids[i]` holds tokens [i*S, (i+1)*S) of the prompt. The first `num_hit_tokens` tokens (whole blocks) are
    already there and must not be written. Under a shared arena the ids are valid on every worker of the box.
    """

    request_id: RequestId
    worker_id: WorkerId
    epoch: int  # incarnation of the worker
    block_ids: tuple[BlockId, ...]
    generations: tuple[int, ...]  # one per block; a write that names another generation is refused
    num_hit_tokens: int
    lease_s: float
