"""How many tokens of an answer are reasoning, when it is decided piece by piece what its text is.

A token is reasoning if any character of its text is. Tokens that come several at a time share their text evenly.
"""

from __future__ import annotations

from collections import deque


class ReasoningTokens:
    def __init__(self) -> None:
        self.count = 0
        self._ends: deque[int] = deque()  # of the text of each token that is not decided, in characters from the start
        self._num_fed = self._num_decided = 0
        self._start = 0  # of the first of them
        self._is_touched = False  # some of it is reasoning

    def fed(self, num_tokens: int, num_chars: int) -> None:
        start, self._num_fed = self._num_fed, self._num_fed + num_chars
        self._ends.extend(start + num_chars * number // num_tokens for number in range(1, num_tokens + 1))

    def decided(self, num_chars: int, *, is_reasoning: bool) -> None:
        self._num_decided += num_chars
        while self._ends and self._ends[0] <= self._num_decided:
            self._start = self._ends.popleft()
            self.count += is_reasoning or self._is_touched
            self._is_touched = False
        if is_reasoning and self._start < self._num_decided and self._ends:
            self._is_touched = True

    def skip(self, num_chars: int) -> None:
        """So many characters of tokens that are no reasoning, where none is undecided."""
        self._num_fed += num_chars
        self._num_decided = self._start = self._num_fed
        if self._ends:  # tokens without text
            self.decided(0, is_reasoning=False)
