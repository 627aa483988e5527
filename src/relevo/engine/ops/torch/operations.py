"""Each operation as torch calls, and a program that runs its trace in every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from relevo.core.errors import UnsupportedModel
from relevo.core.model import Activation, QueryGrowth
from relevo.engine.inputs import StepInputs
from relevo.engine.ops.protocol import (
    PLAIN_ATTENTION,
    SILU,
    AttentionRule,
    DeltaRule,
    ExpertBiases,
    Hidden,
    Reach,
    Router,
    StepLogits,
    Trace,
)
from relevo.engine.ops.ranks import RankSums, once_for_all
from relevo.engine.ops.torch.bits import from_bits, to_bits
from relevo.engine.ops.torch.kv_cache import TorchKVCache
from relevo.engine.ops.torch.latent_cache import TorchLatentCache
from relevo.engine.ops.torch.routing import choose
from relevo.engine.ops.torch.states import gated_delta
from relevo.engine.ops.torch.step import AttentionBatch, TorchStep

TorchCache = TorchKVCache | TorchLatentCache
Angles = tuple[torch.Tensor, torch.Tensor]


class TorchOperations:
    """Of one step. Runs every call at once."""

    def __init__(
        self,
        step: TorchStep,
        kv: TorchCache,
        dtype: torch.dtype,
        logit_tokens: Sequence[int],
        ranks: RankSums | None,
        hidden: Hidden | None = None,
    ) -> None:
        self._step = step
        self._kv = kv
        self._dtype = dtype
        self._ranks = ranks
        self._hidden = hidden
        self._logit_tokens = torch.tensor(logit_tokens, dtype=torch.int64, device=kv.device)

    def embed(self, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        rows = F.embedding(self._step.token_ids, weight)
        return rows if scale == 1.0 else rows.mul_(torch.tensor(scale, dtype=weight.dtype, device=weight.device))

    def hidden_in(self, width: int) -> torch.Tensor:
        assert self._hidden is not None and self._hidden.shape[1] == width, "a stage behind another gets its states"
        return from_bits(self._hidden, self._dtype).to(self._kv.device)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x.flatten(1), weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if weight.dtype != x.dtype:  # kept exact
            return self.rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)
        if len(weight) != x.shape[-1]:  # over all heads of a token
            return F.rms_norm(x.flatten(1), weight.shape, weight, eps).view(x.shape)
        return F.rms_norm(x, weight.shape, weight, eps)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(y)

    def reduce(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        sums = [part.float() for part in parts]
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        total = sums[0]
        if self._ranks is not None:
            rows = total.cpu().numpy()
            self._ranks.all_reduce(rows)
            total = torch.from_numpy(rows).to(total.device)
        return total.to(parts[0].dtype)

    def activate(self, x: torch.Tensor, activation: Activation = SILU) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        if activation.kind == "gelu_tanh":
            return F.gelu(gate, approximate="tanh").mul_(up)
        if activation.kind == "clamped":
            gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
            return (gate * activation.alpha).sigmoid_().mul_(gate).mul_(up + 1)
        return F.silu(gate).mul_(up)

    def experts(
        self,
        x: torch.Tensor,
        router: Router,
        gate_up: Sequence[torch.Tensor],
        down: Sequence[torch.Tensor],
        biases: ExpertBiases | None = None,
        activation: Activation = SILU,
    ) -> list[torch.Tensor]:
        logits = F.linear(x.float(), router.weight, router.logit_bias)
        chosen, weights = choose(logits, router.bias, router.routing)
        if (counts := router.counts) is not None:
            counts += torch.bincount(chosen.flatten(), minlength=len(counts)).cpu().numpy()
        first, num_slices = 0, 1
        if (places := router.places) is not None:
            if not places.are_in_order:
                raise UnsupportedModel("experts that are not in order on ranks are not implemented by torch")
            first, num_slices = places.held[0], places.num_slices
            if (rank_counts := router.rank_counts) is not None:
                of_ranks = chosen.flatten() // (len(places.ranks) // places.num_ranks)
                rank_counts += torch.bincount(of_ranks, minlength=len(rank_counts)).cpu().numpy()
        each, used = len(gate_up) // num_slices, set(chosen.flatten().tolist())
        sums = []
        for start in range(0, len(gate_up), each):
            out = torch.zeros_like(x)
            for place in (place for place in range(start, start + each) if first + place in used):
                tokens, slots = (chosen == first + place).nonzero(as_tuple=True)
                weight = weights[tokens, slots, None].to(x.dtype)
                rows = x[tokens] * weight if router.routing.weighs_inputs else x[tokens]
                inner = F.linear(rows, gate_up[place], biases.gate_up[place] if biases else None)
                down_bias = biases.down[place] if biases and biases.down else None
                part = F.linear(self.activate(inner, activation), down[place], down_bias)
                out.index_add_(0, tokens, part if router.routing.weighs_inputs else part * weight)
            sums.append(out)
        return sums

    def split_heads(self, x: torch.Tensor, num_heads: Sequence[int], head_size: int) -> tuple[torch.Tensor, ...]:
        return torch.split(x.view(len(x), -1, head_size), list(num_heads), dim=1)

    def split(self, x: torch.Tensor, widths: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return torch.split(x, list(widths), dim=-1)

    def linear_heads(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        heads = x.view(len(x), len(weights), -1).transpose(0, 1)  # [H, T, in]
        return torch.bmm(heads, weights.transpose(1, 2)).transpose(0, 1).reshape(len(x), -1)

    def rope_angles(self, inv_freq: npt.NDArray[np.float32], scale: float, growth: QueryGrowth | None = None) -> Angles:
        """[T, 1, D] each; the sines of the first half are negated, as `rope` wants them."""
        angles = self._step.positions[:, None] * torch.from_numpy(inv_freq).to(self._kv.device)
        cos, sin = angles.cos().mul_(scale), angles.sin().mul_(scale)
        if growth is not None:
            steps = torch.floor((self._step.positions[:, None] + 1.0) / growth.tokens)
            factor = torch.log1p(steps) * growth.factor + 1.0
            cos, sin = cos * factor, sin * factor
        both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return both[0].to(self._dtype)[:, None], both[1].to(self._dtype)[:, None]

    def rope(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        cos, signed_sin = angles
        size = cos.shape[-1]
        if size < x.shape[-1]:
            turned = self.rope(x[..., :size], angles)
            return torch.cat((turned, x[..., size:]), dim=-1)
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, rule: AttentionRule = PLAIN_ATTENTION
    ) -> torch.Tensor:
        kv, step = self._kv, self._step
        assert isinstance(kv, TorchKVCache), "a model of keys and values has such a cache"
        first, group = rule.first_kv_head or 0, kv.group_of(layer)
        heads = slice(first, first + k.shape[1])
        kv.write(layer, step.slots[group], k, v, heads)
        batches = step.batches_of(rule.reach, group)
        return _attended(q, batches, lambda rows, batch: _attend(rows, kv, layer, batch, rule, heads))

    def latent_attention(
        self,
        q: torch.Tensor,
        q_rotated: torch.Tensor,
        latent: torch.Tensor,
        key: torch.Tensor,
        layer: int,
        scale: float,
    ) -> torch.Tensor:
        kv, size = self._kv, latent.shape[-1]
        assert isinstance(kv, TorchLatentCache), "a model of latents has such a cache"
        kv.write_latents(layer, self._step.slots[0], latent, key.flatten(1))
        queries = torch.cat((q.view(*q_rotated.shape[:2], size), q_rotated), dim=-1)  # [T, H, L + R]
        batches = self._step.batches_of(Reach(), 0)
        return _attended(queries, batches, lambda rows, batch: _attend_latents(rows, kv, layer, batch, size, scale))

    def gate(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return x * scores.flatten(1).sigmoid()

    def gated_delta(self, x: torch.Tensor, gates: torch.Tensor, layer: int, rule: DeltaRule) -> torch.Tensor:
        assert isinstance(self._kv, TorchKVCache), "a model with states has keys and values beside them"
        return gated_delta(self._kv.states, self._step.inputs, x, gates, layer, rule)

    def gated_norm(self, x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float) -> torch.Tensor:
        heads = x.float().view(len(x), -1, len(weight))
        normed = (heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
        return (normed.view(len(x), -1) * F.silu(gate.float())).to(x.dtype)

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x.flatten(1).index_select(0, self._logit_tokens), weight)

    def hidden_out(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TorchProgram:
    def __init__(
        self,
        trace: Trace,
        dtype: torch.dtype,
        sliding_window: int | None,
        stage: range,
        ranks: RankSums | None = None,
    ) -> None:
        self._trace = trace
        self._ranks = ranks
        self._dtype = dtype
        self._sliding_window = sliding_window
        self._stage = stage

    def run(
        self, inputs: StepInputs, kv: TorchCache, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        started = time.perf_counter()
        with torch.inference_mode():  # no bookkeeping for gradients: a tenth of the cost of small operations
            values: npt.NDArray[np.float32] = self._traced(inputs, kv, logit_tokens, hidden).float().cpu().numpy()
        return StepLogits(values, summaries=None, kernel_s=time.perf_counter() - started)

    def run_inner(self, inputs: StepInputs, kv: TorchCache, hidden: Hidden | None) -> Hidden:
        with torch.inference_mode():
            return to_bits(self._traced(inputs, kv, (), hidden))

    def _traced(
        self, inputs: StepInputs, kv: TorchCache, logit_tokens: Sequence[int], hidden: Hidden | None
    ) -> torch.Tensor:
        if fresh := inputs.fresh_tail_blocks():
            once_for_all(self._ranks, lambda: kv.clear(fresh, self._stage))
        step = TorchStep(inputs, kv, self._dtype, Reach(self._sliding_window or 0))
        traced: torch.Tensor = self._trace(TorchOperations(step, kv, self._dtype, logit_tokens, self._ranks, hidden))
        return traced


def _attended(
    q: torch.Tensor,
    batches: Sequence[AttentionBatch],
    attend: Callable[[torch.Tensor, AttentionBatch], torch.Tensor],
) -> torch.Tensor:
    """Batch by batch, and each row where its token is."""
    if len(batches) == 1 and batches[0].token_indices is None:
        return attend(q, batches[0])
    attended: torch.Tensor | None = None
    for batch in batches:
        if batch.token_indices is not None:
            part = attend(q.index_select(0, batch.token_indices), batch)
        else:
            part = attend(q[batch.first_token : batch.first_token + batch.num_rows * batch.num_queries], batch)
        attended = part.new_empty(len(q), part.shape[1]) if attended is None else attended
        if batch.token_indices is not None:
            attended.index_copy_(0, batch.token_indices, part)
        else:
            attended[batch.first_token : batch.first_token + len(part)] = part
    assert attended is not None, "a step has a row"
    return attended


def _attend(
    q: torch.Tensor, kv: TorchKVCache, layer: int, batch: AttentionBatch, rule: AttentionRule, heads: slice
) -> torch.Tensor:
    """q [R * Q, H, D] -> [R * Q, H * D], over these heads of the cache.

    Query heads that share a KV head are told apart without copying keys: as more queries when each row has one token,
    as heads of a batch of KV heads when one row has many.
    """
    num_tokens, num_heads, head_size = q.shape
    k, v = kv.read(layer, batch.key_runs, batch.num_rows, q.dtype, heads)  # [R, K, C, D]
    num_kv_heads = k.shape[1]
    shared_by = num_heads // num_kv_heads  # G
    if batch.num_queries == 1:
        q = q.reshape(num_tokens, num_kv_heads, shared_by, head_size)
        out = _weighted(q, k, v, batch.mask, rule, (num_kv_heads, shared_by, 1))  # [R, K, G, D]
        return out.reshape(num_tokens, num_heads * head_size)
    q = q.view(num_tokens, num_kv_heads, shared_by, head_size).permute(1, 2, 0, 3)  # [K, G, Q, D]
    shape = (num_kv_heads, shared_by, k.shape[2], head_size)
    keys, values = k.transpose(0, 1).expand(shape), v.transpose(0, 1).expand(shape)
    out = _weighted(q, keys, values, batch.mask, rule, (num_kv_heads, shared_by, 1, 1))
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads * head_size)


def _attend_latents(
    q: torch.Tensor, kv: TorchLatentCache, layer: int, batch: AttentionBatch, size: int, scale: float
) -> torch.Tensor:
    """q [R * Q, H, L + R] -> [R * Q, H * L], over latents of `size`: all heads are queries of the one key."""
    num_tokens, num_heads, _ = q.shape
    keys = kv.read_latents(layer, batch.key_runs, batch.num_rows, q.dtype)[:, None]  # [R, 1, C, L + R]
    if batch.num_queries == 1:
        q, mask = q[:, None], batch.mask  # [R, 1, H, L + R]
    else:
        q, mask = q.transpose(0, 1)[None], batch.mask  # [1, H, Q, L + R]
        keys = keys.expand(-1, num_heads, -1, -1)
    out = F.scaled_dot_product_attention(q, keys, keys[..., :size], attn_mask=mask, scale=scale)
    out = out[:, 0] if batch.num_queries == 1 else out[0].transpose(0, 1)
    return out.reshape(num_tokens, num_heads * size)


def _weighted(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    rule: AttentionRule,
    shape_of_sinks: tuple[int, ...],
) -> torch.Tensor:
    """q [.., Q, D], k and v [.., C, D] -> [.., Q, D]; the sinks as they spread over the scores [.., Q, C]."""
    if rule.sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rule.scale)
    scale = q.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = (q @ k.transpose(-1, -2)).float() * scale + mask
    sinks = rule.sinks.float().view(shape_of_sinks).expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(v.dtype) @ v
