"""POST /v1/embeddings: no model that is served was made for them, and the numbers of another would mean nothing.

Source: OpenAI API reference, "Embeddings".
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from relevo.core.errors import ModelNotFound
from relevo.gateway.http.call import Call


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """What is read of a request: which model it means."""

    model: str | None = None
    input: Any = None


async def embeddings(call: Call) -> Response:
    """Raises ModelNotFound, for every model."""

    def work(body: bytes) -> Response:
        fields = call.parse(body, EmbeddingFields)
        _, name = call.context.models.meant_by(fields.model)
        raise ModelNotFound(
            f"The model `{name}` writes text and was not made for embeddings, and this server has no other that was; "
            "send 'input' to a server of an embedding model, or ask this one for text at /v1/chat/completions.",
            param="model",
        )

    return await call.read(work)
