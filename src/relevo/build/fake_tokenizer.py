"""The tokenizer of the `fake` engine: one token per byte, an end token, a plain chat template in which calls of tools
are written as Hermes models write them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relevo.core.model import TokenizerFiles
from relevo.engine.fake_script import END_TEXT

_EOS = END_TEXT
_TEMPLATE = """\
{%- if tools %}
tools:
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
To call one, write for each call:
<tool_call>
{"name": "the tool", "arguments": {"its": "arguments"}}
</tool_call>
{% endif %}
{% for m in messages %}
{% if m.role == "tool" %}
tool: <tool_response>
{{ m.content }}
</tool_response>
{% else %}
{{ m.role }}: {{ m.content }}
{% for call in m.tool_calls or () %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": \
{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>
{% endfor %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
assistant: {% endif %}"""


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
