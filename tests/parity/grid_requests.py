"""The requests of the comparison: a pairwise grid of everything that can be asked, as bodies that can be sent.

Every request has a seed and a prompt of its own; where prompts repeat, they repeat on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pairwise import Row, all_pairs, num_missing_pairs

BLOCK_SIZE = 16
STEP_TOKENS = 128  # both servers are started with it, so that 255, 256 and 257 are the edges of a chunk
SHORTEST_CHAT = 16  # two messages of one word each, in the model's template; "assistant" is two tokens
STOP_WORD = "the"

FACTORS: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 1.3],
    "top_k": [0, 5, 50],
    "top_p": [1, 0.9],
    "min_p": [0, 0.05],
    "frequency_penalty": [0, 0.6],
    "presence_penalty": [0, 0.6],
    "repetition_penalty": [1, 1.2],
    "logit_bias": [{}, {"260": 2.5, "28": -3.0, "11000": 4.0}],
    "logprobs": [None, 0, 5],
    "stop": [None, STOP_WORD],
    "stop_token_ids": [[], [28, 30, 284]],
    "min_tokens": [0, 8],
    "max_tokens": [1, 2, 17, 40],
    "ignore_eos": [False, True],
    "n": [1, 2, 3],
    "stream": [False, True],
    "endpoint": ["chat", "completions"],
    "num_prompt_tokens": [1, 15, 16, 17, 31, 33, 255, 256, 257, 300],
    "concurrency": [1, 8, 32],
}
# One token each, at the start of a message and after a space.
WORD_LIST = """
    time year people way day man world life hand part child eye woman place work week case point company number group
    problem fact water house room mother area money story month lot right study book job word business issue side
    kind head service friend father power hour game line end member law car city community name president team
    idea body information back parent face level office door health person art war history party result change
    reason research moment air teacher force education minute
"""
WORDS = tuple(WORD_LIST.split())


@dataclass(frozen=True)
class GridRequest:
    number: int
    row: Row
    seed: int
    prompt: tuple[int, ...] | tuple[str, ...]  # token ids, or the words of a chat
    is_repeat: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.row["endpoint"] == "chat" else "/v1/completions"

    def body(self, num_logprobs: int | None = None) -> dict[str, Any]:
        """As it is sent; `num_logprobs` asks for more of them, which changes no token."""
        fields = {k: v for k, v in self.row.items() if k not in ("endpoint", "num_prompt_tokens", "concurrency")}
        fields |= {"seed": self.seed, "return_token_ids": True}
        logprobs = fields.pop("logprobs") if num_logprobs is None else num_logprobs
        if self.row["stream"]:
            fields["stream_options"] = {"include_usage": True}
        if self.row["endpoint"] == "completions":
            return fields | {"prompt": list(self.prompt), "logprobs": logprobs}
        first, *rest = self.prompt
        fields["messages"] = [
            {"role": "system", "content": first},
            {"role": "user", "content": " ".join(map(str, rest))},
        ]
        return fields | ({} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs})


def is_possible(row: Row) -> bool:
    """`min_tokens` above `max_tokens` is refused; no conversation is as short as one token."""
    if row.get("min_tokens", 0) > row.get("max_tokens", 100):
        return False
    return row.get("endpoint") != "chat" or row.get("num_prompt_tokens", 100) >= SHORTEST_CHAT


def make_grid(num_requests: int, num_repeats: int) -> list[GridRequest]:
    """`num_requests` in all, the last `num_repeats` of them repeat prompts of requests that were sent alone."""
    rng = Random(2)
    rows: list[Row] = []
    while len(rows) < num_requests - num_repeats:
        rows += all_pairs(FACTORS, is_possible, rng)
    del rows[num_requests - num_repeats :]
    assert num_missing_pairs(FACTORS, is_possible, rows) == 0
    requests: list[GridRequest] = []
    seen: set[tuple[Any, ...]] = set()
    for number, row in enumerate(rows):
        prompt = _prompt(row, rng)
        while prompt in seen:
            prompt = _prompt(row, rng)
        seen.add(prompt)
        requests.append(GridRequest(number, row, rng.getrandbits(32), prompt))
    able = [r for r in requests if r.row["concurrency"] == 1 and r.row["num_prompt_tokens"] > BLOCK_SIZE]
    repeats = rng.sample(able, num_repeats)
    return requests + [replace(r, number=len(requests) + i, is_repeat=True) for i, r in enumerate(repeats)]


def _prompt(row: Row, rng: Random) -> tuple[Any, ...]:
    length = row["num_prompt_tokens"]
    if row["endpoint"] == "completions":
        return tuple(rng.randrange(100, 40_000) for _ in range(length))
    return tuple(rng.choice(WORDS) for _ in range(length - SHORTEST_CHAT + 2))
