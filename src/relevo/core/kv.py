"""KV cache words: layout, blocks, and the right to write into another worker's blocks.

Owns how many bytes a token or a sequence takes, for every kind of cache. Knows no model, no memory and no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from relevo.core.ids import BlockId, RequestId, WorkerId, WorkerRef

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "int8": 1, "uint64": 8}
MAX_BLOCK_SIZE = 4096  # arbitrary: tokens; a block of another worker is put together in memory
MAX_BLOCK_ID = 2**31 - 1  # required: block tables are int32
MAX_GENERATION = 2**64 - 2  # required: the word after it says that a block is closed
SCALE_BYTES = {"int8": 4}  # per token and head: what the stored integers are multiplied with, float32


class KVKind(StrEnum):
    """What a layer keeps of a sequence."""

    FULL = "full"  # keys and values of every token
    WINDOW = "window"  # of the last `span` tokens: a token sees itself and the `span - 1` before it
    CHUNK = "chunk"  # of the tokens from the last multiple of `span` on
    LATENT = "latent"  # one vector per token for all heads, its value being a part of its key
    STATE = "state"  # a state of fixed size, nothing per token


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers whose caches are alike: one shape, and one rule of what is kept. Made by the method of its kind."""

    kind: KVKind
    layers: tuple[int, ...]  # places in the model, ascending
    num_kv_heads: int = 1  # K: parts into which tensor parallelism can cut it; latents: 1
    key_size: int = 0  # elements per head
    value_size: int = 0  # elements per head; latents: 0
    span: int = 0  # tokens, of windows and chunks
    index_bytes: int = 0  # per token and layer, beside the elements: keys of a sparse indexer
    state_bytes: int = 0  # per sequence and layer

    @classmethod
    def full(cls, layers: Iterable[int], num_kv_heads: int, head_size: int, value_size: int | None = None) -> KVGroup:
        value_size = head_size if value_size is None else value_size
        return cls(
            kind=KVKind.FULL,
            layers=tuple(layers),
            num_kv_heads=num_kv_heads,
            key_size=head_size,
            value_size=value_size,
        )

    @classmethod
    def window(cls, layers: Iterable[int], num_kv_heads: int, head_size: int, span: int) -> KVGroup:
        return cls.full(layers, num_kv_heads, head_size).bounded(KVKind.WINDOW, span)

    @classmethod
    def chunk(cls, layers: Iterable[int], num_kv_heads: int, head_size: int, span: int) -> KVGroup:
        return cls.full(layers, num_kv_heads, head_size).bounded(KVKind.CHUNK, span)

    @classmethod
    def latent(cls, layers: Iterable[int], width: int, index_bytes: int = 0) -> KVGroup:
        """`width`: elements of the latent and of the rope key that all heads share."""
        return cls(kind=KVKind.LATENT, layers=tuple(layers), num_kv_heads=1, key_size=width, index_bytes=index_bytes)

    @classmethod
    def state(cls, layers: Iterable[int], state_bytes: int, num_heads: int = 1) -> KVGroup:
        """`state_bytes`: of one sequence in one layer, whatever the layout's dtype."""
        return cls(kind=KVKind.STATE, layers=tuple(layers), num_kv_heads=num_heads, state_bytes=state_bytes)

    def bounded(self, kind: KVKind, span: int) -> KVGroup:
        """The same shape, of which only what is in reach is kept."""
        return replace(self, kind=kind, span=span)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_bounded(self) -> bool:
        """What a sequence takes stops growing with its length."""
        return self.kind in (KVKind.WINDOW, KVKind.CHUNK, KVKind.STATE)

    @property
    def bytes_per_sequence(self) -> int:
        """That do not depend on its length."""
        return self.num_layers * self.state_bytes

    def bytes_per_token(self, dtype: str) -> int:
        """In all layers, of a token that is kept."""
        num_scales = self.num_layers * self.num_kv_heads * ((self.key_size > 0) + (self.value_size > 0))
        scale_bytes = num_scales * SCALE_BYTES.get(dtype, 0)
        return self.elements_per_token * DTYPE_BYTES[dtype] + scale_bytes + self.index_bytes_per_token

    @property
    def elements_per_token(self) -> int:
        return self.num_layers * self.num_kv_heads * (self.key_size + self.value_size)

    @property
    def index_bytes_per_token(self) -> int:
        return self.num_layers * self.index_bytes

    def most_kept(self, num_tokens: int) -> int:
        """Tokens that are kept at most at once of a sequence of that length."""
        if self.kind is KVKind.STATE:
            return 0
        return min(num_tokens, self.span or num_tokens)

    def first_kept(self, num_tokens: int) -> int:
        """Of tokens [0, num_tokens), the first that a later token reads; `num_tokens`: none."""
        match self.kind:
            case KVKind.WINDOW:
                return max(0, num_tokens - self.span + 1)
            case KVKind.CHUNK:
                return num_tokens // self.span * self.span
            case KVKind.STATE:
                return num_tokens
        return 0

    def __str__(self) -> str:
        span = f" of {self.span} tokens" if self.span else ""
        shape = f"{self.num_kv_heads} x {self.key_size}+{self.value_size}" if self.key_size else ""
        parts = [shape, *(f"{count} bytes" for count in (self.index_bytes, self.state_bytes) if count)]
        return f"{self.kind}{span}, layers {_ranges(self.layers)}, {' and '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one block lies in memory: [L, 2 (K, V), K heads, S tokens, D], row-major, one contiguous run of bytes.

    With int8, the S * D integers of a head are followed by its S scales. L are the layers of the block's group: a block
    of one that is narrower than the widest ends before its bytes do.
    """

    model_hash: str
    dtype: str  # a key of DTYPE_BYTES
    block_size: int  # S, tokens
    groups: tuple[KVGroup, ...]
    tensor_parallel_size: int = 1

    @property
    def fault(self) -> str | None:
        """One sentence that says why no worker can have such blocks, whichever says that it has; None: one can."""
        if not 1 <= self.block_size <= MAX_BLOCK_SIZE:
            return f"KV blocks of {self.block_size} tokens are not possible; use 1 to {MAX_BLOCK_SIZE}"
        if self.dtype not in DTYPE_BYTES:
            return f"KV of dtype {self.dtype[:40]!r} is not known; use one of {', '.join(DTYPE_BYTES)}"
        return None if self.groups else "KV blocks without a group of layers hold nothing; name the layers"

    @property
    def bytes_per_token(self) -> int:
        """Of a token while all layers keep it: what a short sequence takes."""
        return sum(group.bytes_per_token(self.dtype) for group in self.groups)

    @property
    def growing_bytes_per_token(self) -> int:
        """Of these, in the layers that keep every token."""
        return sum(group.bytes_per_token(self.dtype) for group in self.groups if not group.is_bounded)

    @property
    def bytes_per_sequence(self) -> int:
        """That do not depend on its length."""
        return sum(group.bytes_per_sequence for group in self.groups)

    def sequence_bytes(self, num_tokens: int) -> int:
        """What a sequence of that length has to keep for its next token, without the rest of its last blocks."""
        return num_tokens * self.growing_bytes_per_token + self.tail_bytes(num_tokens)

    def tail_bytes(self, num_tokens: int, num_found_tokens: int = 0) -> int:
        """Of these, those of windows, chunks and states: what a handoff moves beside the tokens that the receiver
        lacks. `num_found_tokens`: the receiver has them in the layers with windows and chunks, too."""
        firsts = ((group, max(group.first_kept(num_tokens), num_found_tokens)) for group in self.groups)
        kept = ((group, num_tokens - first) for group, first in firsts if group.is_bounded)
        return self.bytes_per_sequence + sum(count * group.bytes_per_token(self.dtype) for group, count in kept)

    @property
    def bytes_per_block(self) -> int:
        """Blocks of all groups are equal, so that a block serves any of them: as large as S tokens of the widest."""
        return self.bytes_of_blocks(self.block_size)

    def bytes_of_blocks(self, block_size: int) -> int:
        """Of a block of so many tokens, if blocks were of that size here."""
        return block_size * max(group.bytes_per_token(self.dtype) for group in self.groups)

    @property
    def can_be_cut(self) -> bool:
        """Every token of a block lies where it can be found, so that blocks of another size can be made from these."""
        return all(
            group.kind is not KVKind.STATE and not group.index_bytes and group.value_size in (0, group.key_size)
            for group in self.groups
        )

    def mismatch(self, other: KVLayout) -> str | None:
        """One sentence that says why what blocks of `other` hold cannot be used here; None if it can. Block sizes may
        differ where blocks can be cut."""
        if (fault := other.fault) is not None:
            return fault
        names = ("model_hash", "dtype", "groups", "tensor_parallel_size")
        for name in names if self.can_be_cut else (*names, "block_size"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                values = f"{_shown(mine)} here, {_shown(theirs)} there"
                return f"KV layouts differ in {name}: {values}; start both with the same value"
        return None


def _shown(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _ranges(layers: tuple[int, ...]) -> str:
    """0-2, 5 for (0, 1, 2, 5)."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


class KVRefusal(StrEnum):
    """Why a connection to a worker's KV port ended before a block could be written over it."""

    PROTOCOL = "protocol"  # it did not speak the protocol
    SECRET = "secret"  # it does not know the secret of this start of the server
    CERTIFICATE = "certificate"  # between boxes: it has none of this cluster, or one that has expired or was revoked
    TIMEOUT = "timeout"  # it did not finish its handshake in time
    LIMIT = "limit"  # too many were there
    INCARNATION = "incarnation"  # it knows the secret, but wanted an incarnation that is gone
    LAYOUT = "layout"  # it knows the secret, but its blocks do not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room on a decode worker for one request, and the right to write its blocks until it is withdrawn.

    `block_ids[i]` holds tokens [i*S, (i+1)*S) of the prompt in the first KV group; those of the other groups follow,
    group by group: the blocks of what the token after the prompt sees. The first `num_hit_tokens` tokens (whole blocks
    of the first group) are already there and must not be written. What the other groups keep of the first
    `num_found_tokens` is there, too, and has no blocks here. Under a shared arena the ids are valid on every worker of
    the box.
    """

    request_id: RequestId
    worker_id: WorkerId
    epoch: int  # incarnation of the worker
    block_size: int  # S, tokens: of these blocks, whatever the writer's own are
    block_ids: tuple[BlockId, ...]
    generations: tuple[int, ...]  # one per block; a write that names another generation is refused
    num_hit_tokens: int
    num_found_tokens: int = 0  # whole blocks

    @property
    def fault(self) -> str | None:
        """One sentence that says why no worker can have granted it, whichever says that it has; None: one can. Whether
        it is room for a prompt is another question."""
        if not 1 <= self.block_size <= MAX_BLOCK_SIZE:
            return f"It has blocks of {self.block_size} tokens, and 1 to {MAX_BLOCK_SIZE} are possible."
        if len(self.generations) != len(self.block_ids):
            return f"It has {len(self.block_ids)} blocks and {len(self.generations)} generations of them."
        if not 0 <= self.num_found_tokens <= self.num_hit_tokens:
            return f"{self.num_found_tokens} tokens of it were found, of {self.num_hit_tokens} that are hits."
        for what, numbers, most in (
            ("block", self.block_ids, MAX_BLOCK_ID),
            ("generation", self.generations, MAX_GENERATION),
        ):
            if numbers and not 0 <= min(numbers) <= max(numbers) <= most:
                return f"It names {what}s {min(numbers)} to {max(numbers)}, and 0 to {most} are possible."
        return None

    @property
    def worker(self) -> WorkerRef:
        """The incarnation that granted it."""
        return WorkerRef(self.worker_id, self.epoch)

    @property
    def num_hit_blocks(self) -> int:
        """The first of its blocks, which are not open to its writer."""
        return self.num_hit_tokens // self.block_size
