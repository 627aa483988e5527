"""What a model family is to the rest of the house: the words of the table in `families`.

Owns the words only. Loaders, planner, worker and benchmarks ask a `ModelSpec`, and none of them names a family or a
decoder. numpy and a backend are imported where a model is loaded, so that a process that only opens one does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from relevo.core.kv import KVGroup
from relevo.core.model import ModelConfig
from relevo.engine.models.config_fields import ConfigFields
from relevo.engine.models.slices import Share
from relevo.engine.models.weight_plan import Shapes

if TYPE_CHECKING:
    from relevo.engine.inputs import StepInputs
    from relevo.engine.models.expert_counts import ExpertCounts
    from relevo.engine.ops.protocol import Buffer, Hidden, HostTensor, Ops, StepLogits


class Model(Protocol):
    """A loaded model, ready to compute steps."""

    config: ModelConfig
    ops: Ops
    max_model_len: int
    expert_counts: ExpertCounts  # of the layers that this process computes

    def forward(
        self, inputs: StepInputs, kv: Buffer, logit_tokens: Sequence[int], hidden: Hidden | None = None
    ) -> StepLogits:
        """Compute a step, writing its KV; next-token logits after these tokens of the step, valid until the next.
        `hidden`: what the stage before has made of the step; None: all layers are here."""
        ...

    def forward_inner(self, inputs: StepInputs, kv: Buffer, hidden: Hidden | None) -> Hidden:
        """Of a stage that is not the last: compute its layers, writing their KV; what the next stage goes on with,
        valid until the next step."""
        ...


class GgufKeys(Protocol):
    """Keys of a file, without the architecture before their names, and what of its tensors a config depends on."""

    origin: str  # begins every error

    def get(self, key: str, default: Any = None) -> Any: ...

    def need(self, key: str) -> Any:
        """Raises ModelFileError if it is missing."""
        ...

    def count(self, key: str, default: int | None = None) -> int:
        """At least 1. Raises ModelFileError, UnsupportedModel."""
        ...

    def decimal(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """Above 0, or 0 too, as it was written before it was stored in 32 bits. Raises ModelFileError,
        UnsupportedModel."""
        ...

    def fields(self, key: str) -> ConfigFields:
        """With that one key, under its name."""
        ...

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Of a tensor of the file; None: it has none of this name."""
        ...

    def floats(self, tensor: str) -> list[float] | None:
        """The numbers of a small one. Raises UnsupportedModel."""
        ...


class ListWeights(Protocol):
    def __call__(self, config: ModelConfig, stage: range | None = None) -> list[Shapes]:
        """`stage`: of these layers only, and of what stands before or behind them; None: of the whole model."""
        ...


class LoadModel(Protocol):
    def __call__(
        self,
        config: ModelConfig,
        tensors: Iterable[tuple[str, HostTensor]],
        ops: Ops,
        max_model_len: int,
        share: Share | None = None,
        stage: range | None = None,
    ) -> Model:
        """Consume `tensors` once, in any order. `max_model_len`, tokens, fixes length-dependent rope scalings.
        `share`: of a tensor group, whose sums `ops` makes with the other ranks; None: the whole model, uncut.
        `stage`: the layers that are computed here; None: all.

        Raises ModelFileError, UnsupportedModel.
        """
        ...


@dataclass(frozen=True, slots=True)
class GgufNames:
    """What llama.cpp's converter calls the tensors of a family, by their names in a safetensors file."""

    architecture: str  # the file's general.architecture
    top: Mapping[str, str]  # whole names
    # Between "blk.N." and ".weight" or ".bias", or with that, or all, where nothing follows. A star stands for the
    # numbers of experts, a plus between names for tensors whose rows lie one after the other.
    in_layer: Mapping[str, str]
    permutes_heads: bool = False  # rows of q and k are stored in the order of the original Llama
    has_experts: bool | None = (
        False  # of files of this architecture with `expert_count` this family is meant; None: of all
    )
    is_meant: Callable[[GgufKeys], bool] = lambda keys: True  # of these
    # The fields of config.json that its keys were made from; None: it is read key by key. Raises likewise.
    config_fields: Callable[[GgufKeys], Mapping[str, Any]] | None = None
    # What the family has besides, from the file's keys and tensors. Raises ModelFileError, UnsupportedModel.
    complete: Callable[[ModelConfig, GgufKeys], ModelConfig] = lambda config, keys: config


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A model of more than text, whose folder has a model of the family under `text_config` and in its tensors."""

    model_type: str  # of config.json
    prefixes: Mapping[str, str]  # what names of its tensors begin with, and what they begin with in a folder of its own
    skipped: tuple[str, ...]  # beginnings of names of what is not computed


def text_of_images(model_type: str, *skipped: str) -> Wrapper:
    """A wrapper in the two ways in which transformers has written such folders; `skipped`: beginnings of parts."""
    prefixes = {
        "language_model.model.": "model.",
        "language_model.lm_head.": "lm_head.",
        "model.language_model.": "model.",
    }
    return Wrapper(model_type, prefixes, (*skipped, *(f"model.{part}" for part in skipped)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    name: str  # ModelConfig.architecture
    model_types: tuple[str, ...]  # of config.json, that it answers to
    gguf: GgufNames | None  # None: not read from GGUF files
    read_config: Callable[[ConfigFields], ModelConfig]  # of config.json. Raises ModelFileError, UnsupportedModel
    weights: ListWeights  # the tensors of a safetensors file, those stacked in one together
    kv_groups: Callable[[ModelConfig], tuple[KVGroup, ...]]
    load: LoadModel
    wrappers: tuple[Wrapper, ...] = ()
    quantizations: tuple[str, ...] = ()  # methods of quantization_config that its folders are read with
