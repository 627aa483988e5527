"""Texts that tokenizers disagree about, and the tokenizer keys of a small SentencePiece vocabulary."""

from __future__ import annotations

from typing import Any

SPACE = "\u2581"

TEXTS = (
    "",
    " ",
    "Hello, world!",
    "It's what they'LL say; we've SEEN it, don't you think?",
    "中文和日本語テキスト、한국어도 있다。",
    "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "wave: \U0001f44b\U0001f3fd flag: \U0001f1ea\U0001f1f8",
    "combining e\u0301 and composed \u00e9, a\u0308\u0323",
    "\u05e9\u05dc\u05d5\u05dd \u0639\u0644\u064a\u0643\u0645 mixed \u200frtl\u200e",
    "def f(x):\n\tif x is None:\n\t\treturn  [y ** x for y in range(x)]  # ok\n\n\n",
    "   three leading, trailing   ",
    "a  b   c    d\t\te\r\n\r\nf \n g\u00a0h\u3000i",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>text <repo_name> <|im_end|><|im_end|>",
    "<|im_start| not special |im_end|>",
    "\x00\x01\x7f\ufffd\ufeff",
    "Ünïcödé – “quotes” … € ™",
    "ἀρχὴ πάντων ἐστίν; Привет, мир",
    "!!!???...---===>>><<<",
)

NUMBER_TEXTS = (
    "12345",
    "  12345 x",
    "pi is 3.14159, in 2024-05-17 at 10:30:00",
    "a1b22c333   4444",
    "½ cup, x\u00b2 \u0661\u0662\u0663 \u2167 \u00bd",
    "for i in range(100):\n    0x1F + 1e-9",
)


def sentencepiece_fields(**changes: Any) -> dict[str, Any]:
    """Keys of a vocabulary with byte fallback; better pieces have higher scores, no two are equal."""
    pieces = [SPACE, *"abcdehlnorstuwé中"]
    pieces += [
        f"{SPACE}h",
        "he",
        "ll",
        "lo",
        "hello",
        f"{SPACE}he",
        "hell",
        f"{SPACE}hello",
        "or",
        "wor",
        f"{SPACE}wor",
    ]
    pieces += [
        "ld",
        f"{SPACE}world",
        "world",
        "an",
        "and",
        f"{SPACE}and",
        f"{SPACE}{SPACE}",
        "th",
        "the",
        f"{SPACE}the",
    ]
    tokens = ["<unk>", "<s>", "</s>", "[INST]", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    num_plain = len(pieces)
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (len(tokens) - num_plain) + [-float(i) for i in range(num_plain)],
        "tokenizer.ggml.token_type": [2, 3, 3, 3] + [6] * 256 + [1] * num_plain,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return fields | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
