"""What steps of the fake engine would read and multiply, and the limits at which they would take its scripted costs.

As of a model of 10^9 bytes, with half a product of each per token: the base of a step is the reading of its weights,
the cost of a context token that of its KV, the cost of a token its products. So a utilisation is the share of a step's
costs that are of that kind. The numbers are arbitrary, their ratios are not.
"""

from __future__ import annotations

from relevo.core.events import StepCosts, WorkerLimits
from relevo.policy.perf.model_work import ModelWork

_WEIGHT_BYTES = 10**9
_PRODUCTS_PER_TOKEN = 5 * 10**8


def fake_work(costs: StepCosts) -> tuple[ModelWork, WorkerLimits]:
    """A limit is None where what it bounds costs nothing."""
    kv_bytes = round(_WEIGHT_BYTES * costs.per_kv_token_s / costs.base_s) if costs.base_s else 0
    work = ModelWork(
        weight_bytes=_WEIGHT_BYTES,
        products_per_token=_PRODUCTS_PER_TOKEN,
        head_products=0,
        attention_products=0,
        kv_bytes_per_token=kv_bytes,
    )
    limits = WorkerLimits(
        product_ops_per_s=2 * _PRODUCTS_PER_TOKEN / costs.per_token_s if costs.per_token_s else None,
        read_bytes_per_s=_WEIGHT_BYTES / costs.base_s if costs.base_s else None,
    )
    return work, limits
