"""What steps of a model read and multiply, from the tensors that are loaded and how the backend holds them."""

from __future__ import annotations

import math

from relevo.build.backend import instruction_path
from relevo.build.configs import WorkerConfig
from relevo.core.kv import DTYPE_BYTES, KVLayout
from relevo.core.model import ModelConfig
from relevo.engine.loaders.model_files import ModelFiles, StoredTensor
from relevo.engine.models.weight_plan import EMBEDDING, HEAD
from relevo.engine.ops.formats import BLOCK_FORMATS
from relevo.policy.perf.model_work import ModelWork

_OPERANDS = {  # the rest becomes bfloat16
    "q4_0": "int4",
    "q4_1": "int4",
    "q4_k": "int4",
    "q5_0": "int8",
    "q5_1": "int8",
    "q5_k": "int8",
    "q6_k": "int8",
    "q8_0": "int8",
    "F32": "f32",
    "F16": "f32",
}


def model_work(files: ModelFiles, config: WorkerConfig, layout: KVLayout) -> ModelWork:
    """From the names and shapes of the stored tensors: nothing is read. Of experts so many as one token passes: a step
    of more tokens reads more of them."""
    model, matrices = files.config, [stored for stored in files.stored if len(stored.shape) == 2]
    share = model.experts.routing.num_active / model.experts.num_experts if model.experts else 1.0
    head_name = HEAD if any(stored.name == HEAD for stored in matrices) else EMBEDDING
    head = [stored for stored in matrices if stored.name == head_name]
    layers = [stored for stored in matrices if stored.name not in (HEAD, EMBEDDING)]

    def passed(stored: StoredTensor) -> float:
        return share if ".experts." in stored.name else 1.0

    return ModelWork(
        weight_bytes=round(sum(passed(stored) * packed_bytes(stored, config) for stored in (*layers, *head))),
        products_per_token=round(sum(passed(stored) * math.prod(stored.shape) for stored in layers)),
        head_products=sum(math.prod(stored.shape) for stored in head),
        attention_products=model.num_layers * model.num_heads * _products_per_pair(model),
        kv_bytes_per_token=layout.bytes_per_token,
    )


def _products_per_pair(model: ModelConfig) -> int:
    """Of one head's query and one token that it sees."""
    return 2 * model.head_size if model.latent is None else 2 * model.latent.latent_size + model.latent.rope_size


def packed_bytes(stored: StoredTensor, config: WorkerConfig) -> int:
    """Of a matrix as the backend holds it."""
    rows, k = stored.shape
    if config.quantization == "int8":
        return rows * (k + 4)
    if config.backend == "native" and config.dtype == "auto":
        if stored.raw_format is not None:
            block = BLOCK_FORMATS[stored.raw_format]
            return rows * k // block.elements * block.packed_bytes
        return rows * k * (4 if stored.stored_as == "F32" else 2)
    return rows * k * DTYPE_BYTES[config.dtype]


def operand(files: ModelFiles, config: WorkerConfig) -> str:
    """What most of the products multiply: "f32", "bf16", "int8" or "int4". Weights of bfloat16 are multiplied as
    float32 where inputs are not rounded."""
    bfloats = "bf16" if config.activation_dtype == "bfloat16" or instruction_path() == "amx" else "f32"
    if config.quantization == "int8":
        return "int8"
    if config.backend != "native":
        return "f32"
    if config.dtype != "auto":
        return bfloats if config.dtype == "bfloat16" else "f32"
    sizes: dict[str, int] = {}
    for stored in files.stored:
        if len(stored.shape) == 2 and stored.name != EMBEDDING:
            name = _OPERANDS.get(stored.raw_format or stored.stored_as, bfloats)
            sizes[name] = sizes.get(name, 0) + math.prod(stored.shape)
    return max(sizes, key=lambda name: sizes[name])


def input_dtype(operand: str, config: WorkerConfig) -> str:
    """What inputs of such products are rounded to; empty: to nothing."""
    if operand in ("int4", "int8"):
        return "int8" if config.activation_dtype == "int8" else "int16"
    return "bfloat16" if operand == "bf16" else ""
