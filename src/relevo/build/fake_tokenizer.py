"""The tokenizer of the `fake` engine: one token per byte, an end token, a plain chat template."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relevo.core.model import TokenizerFiles

_EOS = "<|end|>"
_TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def fake_tokenizer_files() -> TokenizerFiles:
    """256 byte tokens and one end-of-sequence token, id 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_EOS])
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_template=_TEMPLATE,
        bos_token=None,
        eos_token=_EOS,
        stated_eos_token_ids=(len(alphabet),),
    )
