"""POST /tokenize and /detokenize. Source: vLLM's OpenAI-compatible server documentation."""

from __future__ import annotations

from starlette.responses import Response

from relevo.gateway.http.call import Call
from relevo.gateway.http.replies import json_response
from relevo.gateway.openai.logprobs import token_text
from relevo.gateway.openai.prompts import tokenize_token_ids
from relevo.gateway.openai.sampling import check_token_ids
from relevo.gateway.openai.schemas import DetokenizeFields, TokenizeFields


async def tokenize(call: Call) -> Response:
    def work(body: bytes) -> Response:
        fields = call.parse(body, TokenizeFields)
        served, _ = call.context.models.meant_by(fields.model)
        token_ids = tokenize_token_ids(served, fields)
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
