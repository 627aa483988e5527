"""What clients ask for and this server does not offer: refused if ignoring it would change what the answer means.

Fields that merely tune or hint are accepted without effect and named in the log; unknown fields are ignored.
Sources: OpenAI API reference; the documentation of vLLM's, SGLang's and llama.cpp's servers, for their extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.openai.schemas import GenerationFields

# Accepted without effect; each is named once in the log, so that it is not taken to work.
FIELDS_WITHOUT_EFFECT = frozenset(
    (
        "guided_decoding_backend",
        "thinking_token_budget",
        "length_penalty",
        "spaces_between_special_tokens",
        "typical_p",
        "mirostat",
        "function_call",
        "prediction",
        "verbosity",
        "kv_transfer_params",
        "vllm_xargs",
        "cache_prompt",
        "id_slot",
        "timings_per_token",
        "return_progress",
        "return_cached_tokens_details",
        "return_meta_info",
        "routed_dp_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    )
)

REFUSED_FIELDS: Mapping[str, str] = {  # field -> the rest of the sentence
    "allowed_token_ids": "use 'logit_bias'",
    "bad_words": "use 'logit_bias'",
    "logits_processors": "use 'logit_bias'",
    "truncate_prompt_tokens": "shorten the prompt before it is sent",
    "functions": "use 'tools'",
    "audio": "answers are text only",
    "web_search_options": "nothing is searched here",
}


def refuse_fields(members: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for a field of the body that would change the meaning of the answer if it were ignored."""
    for name, value in members.items():
        if name in REFUSED_FIELDS and not _is_not_given(value):
            raise InvalidRequest(f"'{name}' is not supported: {REFUSED_FIELDS[name]}.", param=name)
    modalities = members.get("modalities", ["text"])
    if modalities != ["text"]:
        raise InvalidRequest(f"'modalities' must be ['text'], got {modalities!r}.", param="modalities")


def _is_not_given(value: Any) -> bool:
    """As some clients write what they do not want. 0 is a wish."""
    return value is False or value in ([], "")


def refuse_unsupported(fields: GenerationFields) -> None:
    """As `refuse_fields`, for fields that may have some values. Raises InvalidRequest."""
    if fields.use_beam_search:
        raise InvalidRequest("Beam search is not supported.", param="use_beam_search")
