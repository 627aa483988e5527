"""Fields of config.json that change no number of a text model: what is not among them, and not read, is refused.

Owns the names that transformers and the makers' own tools write into every config. A family says which others it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from relevo.core.errors import UnsupportedModel
from relevo.engine.models.config_fields import ConfigFields

# Of files, training, generation and classification; names as transformers 4 and 5 write them.
_NAMES = """
    _attn_implementation _attn_implementation_autoset _commit_hash _experts_implementation _name_or_path
    add_cross_attention architectures attention_dropout attn_implementation auto_map aux_loss_alpha bad_words_ids
    begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop
    encoder_no_repeat_ngram_size eos_token_id ep_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder
    is_encoder_decoder is_llama_config label2id length_penalty max_length max_sequence_length min_length
    model_max_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type
    pruned_heads quantization_config remove_invalid_values repetition_penalty resid_pdrop return_dict
    return_dict_in_generate router_aux_loss_coef router_jitter_noise sep_token_id seq_aux suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16
    use_cache
    """
_HARMLESS = frozenset(_NAMES.split())


def refuse_unknown(fields: ConfigFields, read: Collection[str]) -> None:
    """`read`: what the family looks at. A field that is null says nothing. Raises UnsupportedModel."""
    strange = [name for name in fields.raw if name not in read and name not in _HARMLESS]
    strange = [name for name in strange if fields.raw[name] is not None]
    if strange:
        raise UnsupportedModel(
            f"{fields.origin}: {len(strange)} fields are not known for this model_type, the first is {strange[0]!r}; "
            "computing without them could give other answers: take them out if they change nothing"
        )


def refuse_other_values(fields: ConfigFields, known: Mapping[str, Any]) -> None:
    """`known`: fields of which one value is implemented. Raises UnsupportedModel."""
    for name, value in known.items():
        if (stated := fields.raw.get(name)) is not None and stated != value:
            raise UnsupportedModel(f"{fields.origin}: {name} {stated!r} is not implemented; {value!r} is")
