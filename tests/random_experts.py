"""A GGUF file of the Mixtral kind with random weights in Q4_0, of any size: what speed is measured on needs no sense.

`python tests/random_experts.py FILE` writes 1.5 billion parameters, 16 experts of which a token passes two; then
`relevo bench engine FILE`, or `relevo bench peers FILE`: its tokens are bytes, words, and letters.
"""

from __future__ import annotations

import string
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

from relevo.workload.prompts import WORDS

_BLOCK, _BLOCK_BYTES = 32, 18  # of Q4_0: a float16 scale, then two nibbles a byte
_NIBBLE_DEVIATION = 4.6  # of 0 to 15, evenly
_NUM_BYTES = 256


@dataclass(frozen=True)
class ExpertsShape:
    hidden_size: int = 1024
    inner_size: int = 1792  # of an expert
    num_layers: int = 16
    num_heads: int = 16
    num_kv_heads: int = 4
    head_size: int = 64
    num_experts: int = 16
    num_active: int = 2
    vocab_size: int = 32_000
    max_position: int = 4_096

    @property
    def attention_products(self) -> int:
        """Of a layer, without what depends on the context."""
        return self.hidden_size * self.head_size * 2 * (self.num_heads + self.num_kv_heads)

    @property
    def expert_products(self) -> int:
        return 3 * self.hidden_size * self.inner_size


def write_random_experts(path: Path, shape: ExpertsShape) -> Path:
    random = np.random.default_rng(11)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(shape.max_position)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.inner_size)
    writer.add_block_count(shape.num_layers)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_expert_count(shape.num_experts)
    writer.add_expert_used_count(shape.num_active)

    if shape.vocab_size > _NUM_BYTES:
        _add_tokenizer(writer, shape.vocab_size)

    def add(name: str, *dims: int) -> None:
        blocks = _random_blocks(random, dims)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType.Q4_0)

    hidden, inner, experts = shape.hidden_size, shape.inner_size, shape.num_experts
    width, kv_width = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    ones = np.ones(hidden, np.float32)
    add("token_embd", shape.vocab_size, hidden)
    add("output", shape.vocab_size, hidden)
    writer.add_tensor("output_norm.weight", ones)
    for index in range(shape.num_layers):
        layer = f"blk.{index}"
        writer.add_tensor(f"{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"{layer}.ffn_norm.weight", ones)
        add(f"{layer}.attn_q", width, hidden)
        add(f"{layer}.attn_k", kv_width, hidden)
        add(f"{layer}.attn_v", kv_width, hidden)
        add(f"{layer}.attn_output", hidden, width)
        add(f"{layer}.ffn_gate_exps", experts, inner, hidden)
        add(f"{layer}.ffn_up_exps", experts, inner, hidden)
        add(f"{layer}.ffn_down_exps", experts, hidden, inner)
        router = random.normal(0.0, 1.0, (experts, hidden)).astype(np.float32)
        writer.add_tensor(f"{layer}.ffn_gate_inp.weight", router)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    """Byte-level BPE: bytes, the words that prompts are made of, two letters, two pairs of letters; the last token ends
    an answer."""
    tokens, space = [_spelled(byte) for byte in range(_NUM_BYTES)], _spelled(ord(" "))
    pairs = [left + right for left in string.ascii_lowercase for right in string.ascii_lowercase]
    joined = [(space + word[:end], word[end]) for word in WORDS for end in range(len(word))]
    joined += [(left, right) for part in (string.ascii_lowercase, pairs) for left in part for right in part]
    joined = list(dict.fromkeys(joined))[: vocab_size - 1 - _NUM_BYTES]
    tokens += [left + right for left, right in joined]
    merges = [f"{left} {right}" for left, right in joined]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<end>"])
    writer.add_token_types([TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(tokens))
    writer.add_add_bos_token(False)


def _spelled(byte: int) -> str:
    """As GPT-2 writes it: what can be seen is itself, all else comes behind the first 256 characters."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte if byte in seen else 256 + sum(each not in seen for each in range(byte)))


def _random_blocks(random: np.random.Generator, dims: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """[..., bytes of a row]; products of rows with inputs of ordinary size are of ordinary size."""
    k = dims[-1]
    blocks = np.frombuffer(random.bytes(int(np.prod(dims)) // _BLOCK * _BLOCK_BYTES), np.uint8).reshape(
        -1, _BLOCK_BYTES
    )
    blocks = blocks.copy()
    blocks[:, :2] = np.array([1.0 / (_NIBBLE_DEVIATION * k**0.5)], np.float16).view(np.uint8)
    return blocks.reshape(*dims[:-1], k // _BLOCK * _BLOCK_BYTES)


if __name__ == "__main__":
    write_random_experts(Path(sys.argv[1]), ExpertsShape())
