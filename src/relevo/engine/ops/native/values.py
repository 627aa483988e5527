"""What a trace holds while it is recorded: columns of buffers, and operations that have not been carried out yet.

Operations wait for their reader, so that a norm or an activation happens while a product's inputs are prepared, a
product adds straight into the residual, and heads are normed and rotated while they are written to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relevo.core.errors import UnsupportedModel
from relevo.core.model import Activation
from relevo.engine.ops.protocol import SILU


@dataclass(eq=False, slots=True)
class Buffer:
    """[T, width] float32. `slot`: the program's buffer, known when everything is recorded."""

    width: int
    slot: int = -1


@dataclass(eq=False, slots=True)
class Columns:
    """Columns [offset, offset + width) of a buffer. Spent once an operation has written over them."""

    buffer: Buffer
    offset: int
    width: int
    is_spent: bool = False

    def spend(self) -> None:
        self.require()
        self.is_spent = True

    def require(self) -> None:
        if self.is_spent:
            raise UnsupportedModel("a model reads a value after an operation that may overwrite it (add, rope, split)")


@dataclass(eq=False, slots=True)
class Normed:
    x: Columns
    gain: Any
    eps: float
    done: Columns | None = None

    @property
    def width(self) -> int:
        return self.x.width


@dataclass(eq=False, slots=True)
class Activated:
    x: Columns
    activation: Activation
    done: Columns | None = None

    @property
    def width(self) -> int:
        return self.x.width // 2


@dataclass(frozen=True, slots=True)
class Source:
    """What a product is made of. `kind` says what becomes of x first: nothing ("plain"), its norm, or an activation."""

    kind: str
    x: Columns
    gain: Any = None
    eps: float = 0.0
    activation: Activation = SILU

    @property
    def arguments(self) -> dict[str, Any]:
        return {"source": self.kind, "gain": self.gain, "eps": self.eps}


@dataclass(eq=False, slots=True)
class Product:
    source: Source
    matrix: Any
    bias: Any
    done: Columns | None = None

    @property
    def width(self) -> int:
        rows: int = self.matrix.shape[0]
        return rows


@dataclass(eq=False, slots=True)
class Heads:
    """[T, num_heads, size], to be normed by `gain` (if any), then rotated by `angles` (if any)."""

    x: Columns
    num_heads: int
    size: int
    gain: Any = None
    eps: float = 0.0
    angles: int | None = None

    @property
    def width(self) -> int:
        return self.num_heads * self.size


Value = Columns | Normed | Activated | Product | Heads


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """What a trace returns: logits, or hidden states for the next stage."""

    width: int
