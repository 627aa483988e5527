"""Hot experts on more than one rank behind HTTP: the answers of experts in order, also after kill -9 of a rank.

Red when a saved /metrics is no file of loads, when a worker comes back with another placement, or when a rank that ends
while others wait for what it computes for them is waited for.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stack import stack
from test_ranks_served import FLAGS, answer, rank_of, wait_until
from test_tensor_ranks_served import SIZES
from tiny_folders import write_folder
from transformers import MixtralConfig

from relevo.build.placed_experts import asked_expert_loads
from relevo.engine.loaders.resolve import load_model_files
from relevo.settings import Settings

NUM_STREAMS, NUM_EXPERTS = 16, 8
WHOLE = ("--enable-expert-parallel", *FLAGS)


def test_killed_ranks_change_no_answer(tmp_path: Path) -> None:
    config = MixtralConfig(**SIZES, num_local_experts=NUM_EXPERTS, num_experts_per_tok=2)
    folder, counted, skewed = write_folder(tmp_path / "m", config), tmp_path / "metrics.txt", tmp_path / "loads.json"
    with stack(str(folder), "--topology", "unified", "--tensor-parallel-size", "1", *WHOLE) as alone:
        expected = [answer(alone, seed) for seed in range(NUM_STREAMS)]
        counted.write_text(alone.get("/metrics"))
    loads = asked_expert_loads(Settings(expert_load=str(counted)), load_model_files(str(folder)).config)
    assert loads is not None and sum(loads[0]) > NUM_STREAMS * 100
    skewed.write_text(json.dumps([[1000 if expert == layer else 100 for expert in range(8)] for layer in range(2)]))
    flags = ("--topology", "1p1d", "--tensor-parallel-size", "2", "--expert-load", str(skewed))
    with stack(str(folder), *flags, "--num-redundant-experts", "2", *WHOLE) as split:
        assert any("the fullest rank computes 1.00 times the mean, in order 1.53 times" in line for line in split.log)
        assert any("experts of 2 layers placed by load: 10, 10 of them" in line for line in split.log)
        worker, rank = split.pids()["decode-0"], rank_of(split, "decode-0")
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            answers = [pool.submit(answer, split, seed) for seed in range(NUM_STREAMS)]
            wait_until(lambda: split.metric("vllm:num_requests_running") > 0, "nothing ran")
            os.kill(rank, signal.SIGKILL)
            assert [each.result() for each in answers] == expected
        wait_until(lambda: split.pids().get("decode-0") not in (worker, 0, None), "the worker did not come back")
        split.wait_ready()
        assert [answer(split, seed) for seed in range(4)] == expected[:4]
        split.wait_idle()
        of_ranks = [
            sum(split.metric("relevo:expert_rank_tokens_total", worker=each, rank=rank) for rank in "01")
            for each in ("prefill-0", "decode-0")
        ]
        of_experts = [split.metric("relevo:expert_tokens_total", worker=each) for each in ("prefill-0", "decode-0")]
        assert of_ranks == of_experts and all(of_ranks)
