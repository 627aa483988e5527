"""What both generating endpoints read alike: a request's fields, as a neutral `GenerationSpec` wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.core.errors import InvalidRequest
from relevo.gateway.generation.spec import ChatPrompt, GenerationSpec, PlainPrompt
from relevo.gateway.http.call import Call
from relevo.gateway.openai.output_formats import output_format
from relevo.gateway.openai.prompt_logprobs import PromptSheets
from relevo.gateway.openai.schemas import GenerationFields

SESSION_FIELDS = ("session_id", "prompt_cache_key", "promptCacheKey", "metadata")


def response_id(call: Call, fields: GenerationFields, prefix: str) -> str:
    """The `id` of the answer; follows the client's own request id if it sent one."""
    return f"{prefix}-{fields.request_id or call.request_id}"


def generation_spec(
    fields: GenerationFields,
    prompts: Sequence[ChatPrompt | PlainPrompt],
    *,
    num_logprobs: int | None,
    sheets: PromptSheets | None = None,
    is_prompt_only: bool = False,
    default_max_tokens: int | None = None,
) -> GenerationSpec:
    stop = fields.stop
    return GenerationSpec(
        prompts=prompts,
        sampling=fields,
        n=fields.n,
        default_max_tokens=default_max_tokens,
        num_logprobs=num_logprobs,
        output_format=output_format(fields),
        num_prompt_logprobs=sheets.num_prompt_logprobs if sheets is not None else None,
        score_writer=sheets,
        is_prompt_only=is_prompt_only,
        tells_tokens=num_logprobs is not None or fields.return_token_ids,
        stop_strings=[stop] if isinstance(stop, str) else stop or (),
        include_stop_string=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        is_streamed=fields.stream,
        priority=fields.priority,
        service_tier=fields.service_tier,
        cache_salt=fields.cache_salt,
        session={name: getattr(fields, name) for name in SESSION_FIELDS},
    )


def refuse_template(chat_template: Any) -> None:
    """Raises InvalidRequest: a template is code."""
    if chat_template is not None:
        raise InvalidRequest("Templates in requests are not accepted; the model's own is used.", param="chat_template")
