"""Log probabilities of a prompt, in the two forms that clients of OpenAI's API know: kept as JSON as they come.

`echo` with `logprobs` of a completion is OpenAI's, `prompt_logprobs` vLLM's. In both the first token has null: nothing
comes before it. Sources: OpenAI API reference, "Completions"; vLLM's OpenAI-compatible server documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from relevo.core.baton import SampledToken
from relevo.core.errors import InvalidRequest
from relevo.core.ids import TokenId
from relevo.gateway.generation.finished_choice import LogprobParts
from relevo.gateway.generation.prompt_scores import ScoredToken
from relevo.gateway.openai.logprobs import completion_logprobs, finite, token_text
from relevo.gateway.text.served_models import Detokenizer, ServedModel, TextTokenizer


@dataclass(slots=True)
class PromptSheet:
    """What an answer shows of one prompt. Implements generation.prompt_scores.ScoreWriter."""

    echoed: EchoedLogprobs | None
    listed: ListedLogprobs | None

    def add(self, tokens: Sequence[ScoredToken]) -> int:
        return sum(form.add(tokens) for form in (self.echoed, self.listed) if form is not None)


class PromptSheets:
    """Of all prompts of a request; called for each, in order, before it runs."""

    def __init__(self, served: ServedModel, *, num_listed: int | None, num_echoed: int | None = None) -> None:
        """Alternatives in each of the forms; None: that form is not shown."""
        self._served, self._num_listed, self._num_echoed = served, num_listed, num_echoed
        self.num_prompt_logprobs = max((k for k in (num_listed, num_echoed) if k is not None), default=None)
        self._sheets: list[PromptSheet] = []

    def __call__(self, token_ids: Sequence[TokenId]) -> PromptSheet:
        served, echoed, listed = self._served, None, None
        if self._num_echoed is not None:
            detokenizer = served.make_detokenizer(skip_special_tokens=True, continues_text=False)
            echoed = EchoedLogprobs(served.tokenizer, detokenizer, token_ids[0], self._num_echoed)
        if self._num_listed is not None:
            listed = ListedLogprobs(served.tokenizer, self._num_listed)
        self._sheets.append(PromptSheet(echoed, listed))
        return self._sheets[-1]

    def echoed(self, number: int) -> EchoedLogprobs | None:
        """Of prompt `number`."""
        return self._sheets[number].echoed if self._sheets else None

    def listed(self, number: int) -> ListedLogprobs | None:
        return self._sheets[number].listed if self._sheets else None


class EchoedLogprobs:
    """`choices[].logprobs` of a completion that repeats its prompt, as far as the prompt goes."""

    def __init__(
        self, tokenizer: TextTokenizer, detokenizer: Detokenizer, first_token_id: TokenId, num_best: int
    ) -> None:
        self._tokenizer, self._detokenizer, self._num_best = tokenizer, detokenizer, num_best
        self.parts = LogprobParts()
        self._num_chars = len(detokenizer.add(first_token_id))  # of the tokens up to now
        name = token_text(tokenizer, first_token_id)
        self.parts.add({"text_offset": [0], "token_logprobs": [None], "tokens": [name], "top_logprobs": [None]})

    def add(self, tokens: Sequence[ScoredToken]) -> int:
        offsets = []
        for token in tokens:
            offsets.append(self._num_chars)
            self._num_chars += len(self._detokenizer.add(token.token_id))
        shown = [SampledToken(token.token_id, token.logprob, token.best) for token in tokens]
        return self.parts.add(completion_logprobs(self._tokenizer, shown, offsets, self._num_best))


class ListedLogprobs:
    """vLLM's `prompt_logprobs`: for each token of the prompt itself and the best ones, by id."""

    def __init__(self, tokenizer: TextTokenizer, num_best: int) -> None:
        self._tokenizer, self._num_best = tokenizer, num_best
        self._parts = [b"null"]

    def add(self, tokens: Sequence[ScoredToken]) -> int:
        part = orjson.dumps([self._entry(token) for token in tokens])[1:-1]
        self._parts.append(part)
        return len(part)

    def shown(self) -> orjson.Fragment:
        return orjson.Fragment(b"[" + b",".join(self._parts) + b"]")

    def _entry(self, token: ScoredToken) -> dict[str, Any]:
        best = token.best[: self._num_best]
        ranked = [(token.token_id, token.logprob, token.rank)]
        ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(best, start=1)]
        return {
            str(token_id): {
                "logprob": finite(logprob),
                "rank": rank,
                "decoded_token": token_text(self._tokenizer, token_id),
            }
            for token_id, logprob, rank in reversed(ranked)  # its own rank last: the one among equals may be another
        }


def num_prompt_logprobs(asked: int | bool | None) -> int | None:
    """`prompt_logprobs` as it is meant. Raises InvalidRequest."""
    if asked is True:
        raise InvalidRequest("'prompt_logprobs' must be a number, or left out.", param="prompt_logprobs")
    return None if asked is False else asked
