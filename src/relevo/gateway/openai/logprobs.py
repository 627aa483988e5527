"""Log probabilities in the formats of the two OpenAI APIs.

Does not know how they were computed. A token that is not whole UTF-8 characters is shown with replacement characters
in chat (which carries its bytes too) and as `bytes:\\xNN` in completions, whose dictionaries need distinct keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from relevo.core.baton import SampledToken
from relevo.core.ids import TokenId
from relevo.gateway.text.served_models import TextTokenizer

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


def chat_logprobs(tokenizer: TextTokenizer, tokens: Iterable[SampledToken], num_top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion; `num_top` alternatives per token."""
    content = []
    for token in tokens:
        entry = _chat_entry(tokenizer, token.token_id, token.logprob)
        entry["top_logprobs"] = [_chat_entry(tokenizer, *top) for top in token.top_logprobs[:num_top]]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: TextTokenizer, tokens: Sequence[SampledToken], text_offsets: Sequence[int], num_top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion. Each dictionary also holds the token that was drawn."""
    return {
        "text_offset": list(text_offsets),
        "token_logprobs": [finite(token.logprob) for token in tokens],
        "tokens": [token_text(tokenizer, token.token_id) for token in tokens],
        "top_logprobs": [_top_dictionary(tokenizer, token, num_top) for token in tokens],
    }


def token_text(tokenizer: TextTokenizer, token_id: TokenId) -> str:
    """A distinct readable name of a token."""
    data = tokenizer.token_to_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _top_dictionary(tokenizer: TextTokenizer, token: SampledToken, num_top: int) -> dict[str, float]:
    entries = {token_text(tokenizer, token_id): finite(logprob) for token_id, logprob in token.top_logprobs[:num_top]}
    entries.setdefault(token_text(tokenizer, token.token_id), finite(token.logprob))
    return entries


def _chat_entry(tokenizer: TextTokenizer, token_id: TokenId, logprob: float | None) -> dict[str, Any]:
    data = tokenizer.token_to_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(data)}


def finite(logprob: float | None) -> float:
    return LOWEST_LOGPROB if logprob is None else max(logprob, LOWEST_LOGPROB)
