"""Log probabilities as the Responses API tells them, with the text that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.text.served_models import TextTokenizer

_LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


def text_logprobs(tokenizer: TextTokenizer, num_top: int, tokens: Sequence[SampledToken]) -> list[dict[str, Any]]:
    """One entry for each token, with `num_top` alternatives."""
    return [
        {
            **_entry(tokenizer, token.token_id, token.logprob),
            "top_logprobs": [_entry(tokenizer, *top) for top in token.top_logprobs[:num_top]],
        }
        for token in tokens
    ]


def _entry(tokenizer: TextTokenizer, token_id: TokenId, logprob: float | None) -> dict[str, Any]:
    data = tokenizer.token_to_bytes(token_id)
    finite = _LOWEST if logprob is None else max(logprob, _LOWEST)
    return {"token": data.decode(errors="replace"), "logprob": finite, "bytes": list(data)}
