"""Reader of Splitwise's `perf_model.csv`: prompt and token times of Llama2-70B and BLOOM-176B on A100 and H100.

Source: Splitwise (ISCA'24), Mutinifni/splitwise-sim, MIT. Columns: model, hardware, tensor_parallel, prompt_size,
batch_size, token_size, prompt_time (of the batch) and token_time (of a step) in milliseconds. Rows repeat.

splitwise-sim itself files token times under the tokens of their batch's prompts, and looks them up under the number of
rows of a step: a few where the table begins with hundreds, so that a step of any batch takes about as long as one of a
single row. `as_splitwise_sim` does the same, for comparison with its results.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from relevo.policy.perf.measured_times import DecodePoint, MeasuredTimes, PrefillPoint
from relevo.policy.perf.plausible import check_step_times


class SplitwiseKey(NamedTuple):
    model: str  # llama2-70b, bloom-176b
    hardware: str  # a100-80gb, h100-80gb, h100-80gb-pcap
    tensor: int


def read_splitwise(lines: Iterable[str], *, as_splitwise_sim: bool = False) -> dict[SplitwiseKey, MeasuredTimes]:
    """Raises StartError for times in another unit."""
    decode: defaultdict[SplitwiseKey, list[DecodePoint]] = defaultdict(list)
    prefill: defaultdict[SplitwiseKey, list[PrefillPoint]] = defaultdict(list)
    for record in csv.DictReader(lines):
        key = SplitwiseKey(record["model"], record["hardware"], int(record["tensor_parallel"]))
        num_rows, num_prompt = int(record["batch_size"]), int(record["prompt_size"])
        filed_rows = num_rows * num_prompt if as_splitwise_sim else num_rows
        context = 1.0 if as_splitwise_sim else num_prompt + int(record["token_size"]) / 2  # in the middle of the output
        decode[key].append(DecodePoint(num_rows=filed_rows, context=context, step_s=float(record["token_time"]) / 1e3))
        prefill[key].append(PrefillPoint(num_tokens=num_rows * num_prompt, step_s=float(record["prompt_time"]) / 1e3))
    found = {key: MeasuredTimes(decode[key], prefill[key]) for key in decode}
    if not as_splitwise_sim:  # which looks steps up where the table has none
        for key, times in found.items():
            check_step_times(times, f"{key.model} on {key.hardware}")
    return found
