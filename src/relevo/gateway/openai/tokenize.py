"""POST /tokenize and /detokenize, GET /tokenizer_info. Source: vLLM's OpenAI-compatible server documentation."""

from __future__ import annotations

from starlette.responses import Response

from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.generation.prompts import rendered
from relevo.gateway.generation.sampling import check_token_ids
from relevo.gateway.generation.spec import ChatPrompt
from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.openai.logprobs import token_text
from relevo.gateway.openai.requests import refuse_template
from relevo.gateway.openai.schemas import DetokenizeFields, TokenizeFields
from relevo.gateway.openai.tools import function_tools
from relevo.gateway.text.served_models import ServedModel


async def tokenize(call: Call) -> Response:
    def work(body: bytes) -> Response:
        fields = call.parse(body, TokenizeFields)
        served, _ = call.context.models.meant_by(fields.model)
        token_ids = _token_ids(served, fields)
        names = [token_text(served.tokenizer, i) for i in token_ids] if fields.return_token_strs else None
        return json_response(
            {
                "count": len(token_ids),
                "max_model_len": served.max_model_len,
                "tokens": token_ids,
                "token_strs": names,
            }
        )

    return await call.read(work, call.context.max_tokenize_bytes)


async def detokenize(call: Call) -> Response:
    def work(body: bytes) -> Response:
        fields = call.parse(body, DetokenizeFields)
        tokenizer = call.context.models.meant_by(fields.model)[0].tokenizer
        return json_response(
            {"prompt": tokenizer.decode(check_token_ids(fields.tokens, tokenizer.vocab_size, "tokens"))}
        )

    return await call.read(work, call.context.max_tokenize_bytes)


async def tokenizer_info(call: Call) -> Response:
    """Query: `model`, where there are several."""
    served, _ = call.context.models.meant_by(call.request.query_params.get("model"))
    return json_response(served.tokenizer_info)


def _token_ids(served: ServedModel, fields: TokenizeFields) -> list[TokenId]:
    """What the same prompt or messages would be as a request; no length limit."""
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
    refuse_template(fields.chat_template)
    if fields.messages is None:
        add_special_tokens = True if fields.add_special_tokens is None else fields.add_special_tokens
        return served.tokenizer.encode(fields.prompt or "", add_special_tokens=add_special_tokens)
    prompt = ChatPrompt(
        messages=fields.messages,
        tools=function_tools(fields.tools or ()),
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        template_kwargs=fields.chat_template_kwargs,
    )
    return served.tokenizer.encode(rendered(served, prompt), add_special_tokens=bool(fields.add_special_tokens))
