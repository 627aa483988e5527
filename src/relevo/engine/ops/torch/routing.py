"""Which experts tokens pass, in torch: the reference of what `native/src/rows/routing.cc` chooses."""

from __future__ import annotations

import torch

from relevo.core.model import Routing

_LEAST_SUM = 1e-20  # of weights that are divided by their sum


def choose(logits: torch.Tensor, bias: torch.Tensor | None, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, experts] float32, bias [experts] -> experts [T, active] int64 and their weights, float32."""
    scores = logits.sigmoid() if routing.scoring == "sigmoid" else logits.softmax(dim=-1)
    choice = scores if bias is None else scores + bias
    if bias is None and routing.num_used_groups == routing.num_groups:
        choice = logits  # scores rise with them, until they are all 1
    if routing.num_used_groups < routing.num_groups:
        grouped = choice.view(len(choice), routing.num_groups, -1)
        sums = grouped.topk(min(routing.group_sum_of, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(sums, dtype=torch.bool)
        kept.scatter_(1, sums.topk(routing.num_used_groups, dim=-1).indices, True)
        choice = grouped.masked_fill(~kept[..., None], float("-inf")).view(choice.shape)
    chosen = choice.topk(routing.num_active, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, chosen)
    if routing.normalises:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _LEAST_SUM)
    return chosen, weights * routing.scale
