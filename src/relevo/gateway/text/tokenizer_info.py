"""What a client that makes its own prompts wants to know of a model's tokenizer, in the words of its files.

Source: tokenizer_config.json of Hugging Face transformers, which vLLM's /tokenizer_info answers with.
"""

from __future__ import annotations

from typing import Any

from relevo.core.model import TokenizerFiles

DEFAULT_CLASS = "PreTrainedTokenizerFast"  # of a file that names none: any tokenizer.json is one


def tokenizer_info(files: TokenizerFiles, max_model_len: int) -> dict[str, Any]:
    """`model_max_length` is what is served, whatever the files say."""
    return {
        "tokenizer_class": files.tokenizer_class or DEFAULT_CLASS,
        "chat_template": files.chat_template,
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "unk_token": files.unk_token,
        "pad_token": files.pad_token,
        "additional_special_tokens": list(files.additional_special_tokens),
        "add_bos_token": files.add_bos_token,
        "model_max_length": max_model_len,
    }
