"""Which line each request of a scripted fake model says, and whether it may: only where the KV cache holds its context.

Owns a memory of what follows from a prompt alone, so that a step costs no more than its tokens; with or without it the
answers are the same. It does not know where the cache lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relevo.core.ids import RequestId
from relevo.core.plan import ScheduledRow
from relevo.core.request import EngineRequest
from relevo.engine.fake_model import VALUE_MASK, Words, context_hash, fingerprints
from relevo.engine.fake_script import Line, Rule, Script

_MAX_KEPT = 64  # prompts; arbitrary


@dataclass(frozen=True, slots=True)
class _Known:
    request: EngineRequest
    rule: Rule
    fingerprints: Words  # of the prompt


class Lines:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._known: dict[RequestId, _Known] = {}  # the longest unused first

    def line(self, row: ScheduledRow, sample_index: int, context: int) -> Line | None:
        """What continuation `sample_index` of a row that samples says; None: `context` is not the hash of its tokens.

        Raises InvalidRequest where no rule matches the prompt.
        """
        known = self._of(row.request)
        expected = known.fingerprints
        outputs = row.samples[0].output_token_ids  # those of the sequence
        if outputs:
            expected = np.append(expected, fingerprints(outputs, len(expected), int(expected[-1])))
        is_right = context == context_hash(expected, expected ^ VALUE_MASK)
        return known.rule.line(sample_index) if is_right else None

    def pace_s(self, rows: list[ScheduledRow]) -> float:
        """Least duration of a step with these rows."""
        return max((self._of(row.request).rule.pace_s for row in rows if row.samples), default=0.0)

    def _of(self, request: EngineRequest) -> _Known:
        known = self._known.pop(request.request_id, None)
        if known is None or known.request is not request:
            prompt = request.prompt_token_ids
            known = _Known(request, self._script.rule_for(prompt), fingerprints(prompt, 0, 0))
            if len(self._known) >= _MAX_KEPT:
                self._known.pop(next(iter(self._known)))
        self._known[request.request_id] = known
        return known
