"""A gated delta rule behind a short convolution, in double precision and by definition: what tests compare with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relevo.core.model import GatedDelta

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class PlainRule:
    sizes: GatedDelta
    convolution: Floats  # [C, kernel]
    decay: Floats  # [Hv], its logarithm
    decay_bias: Floats  # [Hv]

    @classmethod
    def random(cls, sizes: GatedDelta, seed: int = 0) -> PlainRule:
        drawn = np.random.default_rng(seed)
        shapes = ((sizes.width, sizes.kernel_size), (sizes.num_value_heads,), (sizes.num_value_heads,))
        return cls(sizes, *(drawn.normal(size=shape).astype(np.float32) for shape in shapes))

    def values(self, x: Floats, gates: Floats) -> Floats:
        """Of a whole sequence: x [T, C], gates [T, 2 * Hv] -> [T, V]."""
        sizes = self.sizes
        q, k, v = np.split(self._convolved(x), (sizes.num_keys, 2 * sizes.num_keys), axis=1)
        shared_by = sizes.num_value_heads // sizes.num_key_heads
        q, k = (_unit(each.reshape(len(x), -1, sizes.key_size)).repeat(shared_by, axis=1) for each in (q, k))
        v = v.reshape(len(x), -1, sizes.value_size)
        written, kept = np.split(gates.astype(np.float64), 2, axis=1)
        written = 1 / (1 + np.exp(-written))
        kept = np.exp(-np.exp(self.decay) * np.logaddexp(0, kept + self.decay_bias))
        state = np.zeros((sizes.num_value_heads, sizes.key_size, sizes.value_size))
        out = np.empty((len(x), sizes.num_values))
        for token in range(len(x)):
            state = state * kept[token][:, None, None]
            new = (v[token] - np.einsum("hkv,hk->hv", state, k[token])) * written[token][:, None]
            state = state + k[token][:, :, None] * new[:, None]
            out[token] = np.einsum("hkv,hk->hv", state, q[token] * sizes.key_size**-0.5).ravel()
        return out

    def _convolved(self, x: Floats) -> Floats:
        num_before = self.sizes.kernel_size - 1
        seen = np.concatenate((np.zeros((num_before, x.shape[1])), x.astype(np.float64)))
        mixed = sum(seen[tap : tap + len(x)] * self.convolution[:, tap] for tap in range(num_before + 1))
        return np.asarray(mixed / (1 + np.exp(-mixed)))


def _unit(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-6))
