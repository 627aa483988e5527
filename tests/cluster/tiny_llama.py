"""A random Llama of 1.4 MB with a tokenizer of bytes: `python tiny_llama.py FOLDER`, where transformers is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

NUM_BYTES = 256
BOS, EOS = NUM_BYTES, NUM_BYTES + 1
VOCAB_SIZE = 320
MAX_LEN = 2048


def byte_tokenizer() -> dict[str, object]:
    """Every byte a token of its own, in the alphabet of byte-level BPE, and two marks."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    marks = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, text in ((BOS, "<s>"), (EOS, "</s>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": marks,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }


def make(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():  # wide enough that answers differ from prompt to prompt
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.12)
    model.save_pretrained(folder)  # float32: near ties are rare, so that answers can be compared
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}<s>assistant: "
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
