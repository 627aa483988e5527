"""The paths of OpenAI's API, with what vLLM adds to them."""

from __future__ import annotations

from relevo.gateway.http.route import Route
from relevo.gateway.openai.chat import chat_completions
from relevo.gateway.openai.completions import completions
from relevo.gateway.openai.embeddings import EmbeddingFields, embeddings
from relevo.gateway.openai.errors import OPENAI_ERRORS
from relevo.gateway.openai.models import list_models, show_model
from relevo.gateway.openai.schemas import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from relevo.gateway.openai.tokenize import detokenize, tokenize, tokenizer_info

OPENAI_ROUTES = (
    Route("POST", "/v1/chat/completions", chat_completions, OPENAI_ERRORS, is_generation=True, request=ChatFields),
    Route("POST", "/v1/completions", completions, OPENAI_ERRORS, is_generation=True, request=CompletionFields),
    Route("GET", "/v1/models", list_models, OPENAI_ERRORS),
    Route("GET", "/v1/models/*", show_model, OPENAI_ERRORS),
    Route("POST", "/v1/embeddings", embeddings, OPENAI_ERRORS, request=EmbeddingFields),
    Route("POST", "/tokenize", tokenize, OPENAI_ERRORS, request=TokenizeFields),
    Route("POST", "/detokenize", detokenize, OPENAI_ERRORS, request=DetokenizeFields),
    Route("GET", "/tokenizer_info", tokenizer_info, OPENAI_ERRORS, query=("model",)),
)
