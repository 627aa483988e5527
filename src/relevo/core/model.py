"""What a model folder or file says about itself, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from relevo.core.ids import TokenId


@dataclass(frozen=True, slots=True)
class Activation:
    """Of a gate and the value beside it."""

    kind: str = "silu"  # silu(gate) * up; "gelu_tanh"; "clamped": (up + 1) * gate * sigmoid(alpha * gate), both clamped
    alpha: float = 1.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries of layers without positions grow with them: by 1 + factor * log(1 + floor((position + 1) / tokens))."""

    factor: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttention:
    """Of the layers that see a part of the context: a window, or the chunk that a token is in."""

    layers: tuple[int, ...]  # places in the model, ascending
    window: int = 0  # tokens, a query's own included; 0: none
    chunk: int = 0  # tokens; 0: none
    rope_theta: float | None = None  # None: positions turn them as they turn the other layers
    rope_scaling: dict[str, Any] = field(default_factory=dict)  # theirs, where they have a theta


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a router's scores choose among experts, and weigh what they come to."""

    num_active: int  # experts per token
    scoring: str = "softmax"  # of all logits; or "sigmoid", of each
    normalises: bool = True  # weights of a token sum to `scale`
    scale: float = 1.0  # of all weights
    has_bias: bool = False  # added to what is chosen by, never to a weight
    has_logit_bias: bool = False  # added to the scores themselves
    weighs_inputs: bool = False  # of experts, in place of what they give
    num_groups: int = 1  # of consecutive experts
    num_used_groups: int = 1  # those with the best sums; the others' experts are not chosen
    group_sum_of: int = 2  # of how many of a group's experts, the best ones


RanksOfExperts = tuple[tuple[int, ...], ...]  # of a layer, by expert: the ranks that have it, ascending
ExpertRanks = tuple[RanksOfExperts, ...]  # by layer with experts


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """Of a layer whose experts lie whole on ranks, as one slice of a rank sees it. A rank sums its slices' experts,
    whichever ranks compute them; all slices are of equally many, in order."""

    ranks: RanksOfExperts
    rank: int
    num_ranks: int
    num_slices: int  # of each rank; 0: another slice of this one stands for all of them

    @property
    def held(self) -> tuple[int, ...]:
        """Experts whose weights the slice has."""
        return tuple(e for e, ranks in enumerate(self.ranks) if self.rank in ranks) if self.num_slices else ()

    @property
    def are_in_order(self) -> bool:
        """Each expert lies on the rank that sums it, and on no other."""
        each = len(self.ranks) // self.num_ranks
        return all(ranks == (expert // each,) for expert, ranks in enumerate(self.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Of the layers that have experts in place of one MLP."""

    layers: tuple[int, ...]  # places in the model, ascending
    num_experts: int
    intermediate_size: int  # of each
    routing: Routing
    shared_size: int = 0  # of the MLP that every token passes besides; 0: there is none
    activation: Activation = Activation()
    has_biases: bool = False
    block: str = "mlp"  # what checkpoints call it, and its parts:
    projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # two: gate and up are one matrix
    places: tuple[ExpertPlaces, ...] = ()  # by layer, of a slice with whole experts; empty: all are here, or parts
    is_interleaved: bool = False  # rows of that one alternate between gate and up
    stacked_gate_up: str = (
        ""  # checkpoints may have this of all, [E, 2 * I, hidden], and beside it all downs; empty: none
    )
    router: str = "gate"
    bias: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts"
    shared_gate: str = ""  # a score of what the shared MLP comes to; empty: it is added as it is

    def places_in(self, layer: int) -> ExpertPlaces | None:
        return self.places[self.layers.index(layer)] if self.places else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Of attention whose keys and values are made of one latent per token (MLA). Sizes in elements."""

    latent_size: int
    rope_size: int  # of the rotated part of a key, which all heads share, and of each query
    nope_size: int  # of the other part, for each head
    value_size: int  # for each head
    query_rank: int | None = None  # of the latent that queries are made of; None: they are made of the hidden state
    is_interleaved: bool = True  # in checkpoints elements 2i and 2i + 1 are rotated together, else i and i + size / 2

    @property
    def width(self) -> int:
        """What a layer keeps of a token."""
        return self.latent_size + self.rope_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFiles:
    """How the tensors of layers with a gated delta rule lie in a model's files."""

    has_inputs_by_head: bool = False  # rows of q, k, v, z lie together by key head, else those of all heads by kind
    has_gates_by_head: bool = False  # and so do those of what gates the state
    has_logarithms: bool = True  # of the decay, else minus its exponential
    is_tiled: bool = False  # value head n goes with key head n modulo their number, else neighbours with one


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """Of the layers that keep a state in place of keys and values: a gated delta rule behind a short convolution."""

    layers: tuple[int, ...]  # places in the model, ascending
    num_key_heads: int
    num_value_heads: int  # a multiple of them
    key_size: int  # elements of a head
    value_size: int
    kernel_size: int  # tokens that the convolution sees, its own included
    files: DeltaFiles = DeltaFiles()

    @property
    def num_keys(self) -> int:
        return self.num_key_heads * self.key_size

    @property
    def num_values(self) -> int:
        return self.num_value_heads * self.value_size

    @property
    def width(self) -> int:
        """Of what is convolved: queries, keys, values."""
        return 2 * self.num_keys + self.num_values

    @property
    def output_heads(self) -> list[int]:
        """Where each value head lies among those of the output's matrix."""
        heads = range(self.num_value_heads)
        if not self.files.is_tiled:
            return list(heads)
        shared_by = self.num_value_heads // self.num_key_heads
        return [head % shared_by * self.num_key_heads + head // shared_by for head in heads]

    def state_bytes(self, element_bytes: int) -> int:
        """Of a sequence in a layer: a float32 matrix by head, and the convolution's last inputs."""
        matrices = self.num_value_heads * self.key_size * self.value_size * 4
        return matrices + self.width * (self.kernel_size - 1) * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The architecture of a decoder, in Hugging Face's terms."""

    architecture: str  # a name in engine.models.families
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # K
    head_size: int  # D
    rms_norm_eps: float
    rope_theta: float
    max_position: int  # as config.json says it, tokens; rope scalings begin here or at their own original length
    rope_scaling: dict[str, Any] = field(default_factory=dict)  # as in config.json; empty: none
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    attention_bias: bool = False  # bias on the output projection too
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_spans_heads: bool = False  # one norm over all heads of a token, not one per head
    rotary_size: int | None = None  # elements of a head that positions rotate, the first ones; None: all
    experts: ExpertsConfig | None = None
    latent: LatentAttention | None = None  # None: keys and values of their own; `head_size` is that of a query
    delta: GatedDelta | None = None  # of some layers
    gated_attention: bool = False  # rows of a query are followed by those of a gate of what its head gives
    num_mtp_layers: int = 0  # behind the others in a checkpoint, for drafts of more tokens; not computed
    sliding_window: int | None = None  # of all layers
    local: LocalAttention | None = None  # of some layers
    unturned_layers: tuple[int, ...] = ()  # whose queries and keys know no positions
    query_growth: QueryGrowth | None = None  # in these
    attention_scale: float | None = None  # of scores; None: head_size ** -0.5
    sinks: bool = False
    interleaved_rope: bool = False  # checkpoints pair element 2i of a head with 2i + 1, not i with i + D / 2
    unit_qk_norm: bool = False  # queries and keys are normed after their rotation, without weights
    embedding_scale: float = 1.0
    norm_offset: float = 0.0  # added to the stored weights of norms
    sandwich_norms: bool = False  # attention and MLP are normed before they are added, too
    activation: Activation = Activation()
    mlp: str = "mlp"  # what checkpoints call it
    max_position_is_whole: bool = False  # its rope scaling included
    dtype: str = "float32"  # the dtype the weights were stored in

    def local_rope(self) -> ModelConfig:
        """The same, with the rope of the layers that see a part of the context."""
        if self.local is None or self.local.rope_theta is None:
            return self
        return replace(self, rope_theta=self.local.rope_theta, rope_scaling=self.local.rope_scaling)

    @property
    def max_context(self) -> int:
        """Tokens that it is made for, its rope scaling included. Source: how vLLM derives the longest context."""
        if self.max_position_is_whole:
            return self.max_position
        kind, factor = self.rope_scaling.get("rope_type"), self.rope_scaling.get("factor", 1.0)
        if kind in ("linear", "dynamic"):
            return int(self.max_position * factor)
        if kind == "yarn" and "factor" in self.rope_scaling:
            return int(self.rope_scaling.get("original_max_position_embeddings", self.max_position) * factor)
        return self.max_position  # llama3 and longrope say the whole length


@dataclass(frozen=True, slots=True)
class BpeTables:
    """The long tables of a byte pair encoding. As objects they become a tokenizer in half the time their JSON takes."""

    vocab: dict[str, TokenId]
    merges: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Everything the gateway needs to turn text into tokens and back."""

    tokenizer_json: str  # Hugging Face `tokenizers` format; without what is in `bpe`
    chat_template: str | None
    named_templates: dict[str, str] = field(default_factory=dict)  # beside it, such as "tool_use"
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None = None
    pad_token: str | None = None
    additional_special_tokens: tuple[str, ...] = ()
    tokenizer_class: str | None = None  # as transformers names it
    add_bos_token: bool | None = None  # None: as tokenizer.json's post-processor does
    stated_eos_token_ids: tuple[TokenId, ...] = ()  # of all files and keys that name one
    turn_end_ids: dict[str, TokenId] = field(default_factory=dict)  # added tokens that may end a turn, by their text
    generation_config: dict[str, Any] = field(default_factory=dict)  # what the makers sample with, and more; raw
    generation_origin: str = "generation_config.json"  # what says so
    bpe: BpeTables | None = None  # None: they are in tokenizer_json

    @property
    def eos_token_ids(self) -> tuple[TokenId, ...]:
        """Generation ends at any of them: a template that writes one after each message taught the model to stop there,
        also where the files name only the end of the document."""
        templates = [self.chat_template or "", *self.named_templates.values()]
        written = [id_ for text, id_ in self.turn_end_ids.items() if any(text in template for template in templates)]
        return tuple(dict.fromkeys((*self.stated_eos_token_ids, *written)))
