"""Fleet simulators' length distributions: JSON `[[tokens, fraction], ...]`, alone or as `{"cdf": [...]}`.

They count the tokens of prompt and answer together, and give no times: requests are drawn, and split by a fraction that
the caller must choose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count

from relevo.workload.lengths import CdfLengths
from relevo.workload.requests import WorkloadRequest
from relevo.workload.traces.rows import TraceError


def read_cdf(text: str) -> CdfLengths:
    """Raises TraceError for what is no distribution function."""
    try:
        document = json.loads(text)
        points = document["cdf"] if isinstance(document, dict) else document
        lengths, fractions = [int(tokens) for tokens, _ in points], [float(fraction) for _, fraction in points]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise TraceError(1, f"no distribution ({error}); expected [[tokens, fraction], ...]") from None
    ascending = lengths == sorted(lengths) and fractions == sorted(fractions)
    if not lengths or not ascending or lengths[0] < 1 or not fractions[0] >= 0.0 or fractions[-1] != 1.0:
        raise TraceError(1, "the points are no distribution; expected ascending tokens and fractions, the last one 1")
    return CdfLengths(lengths, fractions)


def draw_requests(totals: CdfLengths, output_fraction: float, rng: random.Random) -> Iterator[WorkloadRequest]:
    """Endless."""
    for row in count():
        num_tokens = totals.draw(rng)
        num_output_tokens = max(1, round(num_tokens * output_fraction))
        num_prompt_tokens = max(1, num_tokens - num_output_tokens)
        yield WorkloadRequest(row=row, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens)
