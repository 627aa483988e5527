"""Options of engines that serve in Relevo's place, as their `--help` and reference pages list them: those that have to
do with how a model is spread, what a step holds and where KV goes. Recorded from vLLM's engine arguments (0.8 to 0.19),
SGLang's server arguments (0.5) and their routers; a parser made of them takes what the engines take."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any

Kinds = Mapping[str, Callable[[str], Any] | None]  # None: a switch


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return check


def _transfer(text: str) -> Any:
    config = json.loads(text)
    if config["kv_role"] not in ("kv_producer", "kv_consumer", "kv_both") or not config["kv_connector"]:
        raise ValueError(text)
    return config


VLLM: Kinds = {
    "--host": str,
    "--port": _positive,
    "--tensor-parallel-size": _positive,
    "--pipeline-parallel-size": _positive,
    "--data-parallel-size": _positive,
    "--data-parallel-size-local": _positive,
    "--enable-expert-parallel": None,
    "--max-model-len": _positive,
    "--max-num-seqs": _positive,
    "--max-num-batched-tokens": _positive,
    "--gpu-memory-utilization": _fraction,
    "--block-size": _positive,
    "--kv-cache-dtype": str,
    "--kv-transfer-config": _transfer,
}
SGLANG: Kinds = {
    "--model-path": str,
    "--host": str,
    "--port": _positive,
    "--tp-size": _positive,
    "--pp-size": _positive,
    "--dp-size": _positive,
    "--ep-size": _positive,
    "--enable-dp-attention": None,
    "--context-length": _positive,
    "--max-running-requests": _positive,
    "--chunked-prefill-size": int,
    "--mem-fraction-static": _fraction,
    "--page-size": _positive,
    "--disaggregation-mode": _one_of("null", "prefill", "decode"),
    "--disaggregation-transfer-backend": _one_of("mooncake", "nixl", "ascend", "fake"),
    "--disaggregation-bootstrap-port": _positive,
}
START: Mapping[tuple[str, ...], tuple[Kinds, int]] = {  # how a command begins: its options, and words before them
    ("vllm", "serve"): (VLLM, 1),
    ("python3", "-m", "sglang.launch_server"): (SGLANG, 0),
}
ROUTERS: Mapping[tuple[str, ...], str] = {
    ("vllm-router",): "--vllm-pd-disaggregation",
    ("python3", "-m", "sglang_router.launch_router"): "--pd-disaggregation",
}


def parsed(words: list[str]) -> Mapping[str, Any]:
    """The options of a command by name. Raises SystemExit for what the engine would not take, LookupError for an engine
    that was not recorded."""
    parser = ArgumentParser(allow_abbrev=False)
    for beginning, split in ROUTERS.items():
        if tuple(words[: len(beginning)]) == beginning:
            parser.add_argument(split, action="store_true")
            for name in ("--prefill", "--decode"):
                parser.add_argument(name, action="append")
            parser.add_argument("--worker-urls", nargs="+")
            return vars(parser.parse_args(words[len(beginning) :]))
    beginning = next(each for each in START if tuple(words[: len(each)]) == each)
    options, num_words = START[beginning]
    for number in range(num_words):
        parser.add_argument(f"word{number}")
    for name, kind in options.items():
        if kind is None:
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=kind)
    return vars(parser.parse_args(words[len(beginning) :]))
