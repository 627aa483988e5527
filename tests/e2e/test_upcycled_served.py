"""SmolLM2 with experts that are copies of its MLP, and random routers, says what SmolLM2 says, on any ranks.

A hundred prompts over each way of serving it. Red when a rank takes another's experts, when a handoff loses a part, or
when experts are weighed wrongly. Both are floats of 16 bits with KV in float32. With one expert for each token nothing
rounds otherwise, and log probabilities are equal to the last digit to those of the dense model on ranks alike; with
two, tokens are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stack import stack

from kept_folders import kept_folder
from relevo.build.vocabulary import tokenizer_files
from relevo.engine.loaders.model_files import ModelFiles
from relevo.engine.loaders.resolve import load_model_files
from upcycled import write_dense, write_upcycled

pytestmark = pytest.mark.model
FLAGS = ("--num-kv-blocks", "256", "--max-model-len", "256", "--max-num-seqs", "16", "--kv-cache-dtype", "float32")
ALONE, TENSOR = ("--topology", "unified"), ("--topology", "unified", "--tensor-parallel-size", "2")
HANDED = ("--topology", "1p1d", "--no-conditional-disaggregation")
WHOLE = "--enable-expert-parallel"
WAYS = {
    "1p1d": HANDED,
    "two tensor ranks": TENSOR,
    "two stages": (*ALONE, "--pipeline-parallel-size", "2"),
    "experts whole on two ranks": (*TENSOR, WHOLE),
}
TOPICS = ("rivers", "bread", "the moon", "a small town", "trains", "winter", "music", "an old map", "bees", "the sea")
BEGINNINGS = (
    "Write about", "Once upon a time,", "The history of", "A short story of", "In the morning,", "What is known of",
    "My grandmother told me of", "Scientists have found that", "Nothing is as quiet as", "It is hard to imagine",
)  # fmt: skip
PROMPTS = [f"{beginning} {topic}" for beginning in BEGINNINGS for topic in TOPICS]


Answer = tuple[str, tuple[float, ...]]  # its text, and the log probability of each token


def answers(folder: Path, *flags: str, prompts: Sequence[str] = PROMPTS) -> list[Answer]:
    def answer(prompt: str) -> Answer:
        choice: Any = server.complete(prompt, max_tokens=24, logprobs=1)["choices"][0]
        return choice["text"], tuple(choice["logprobs"]["token_logprobs"])

    with stack(str(folder), *flags, *FLAGS) as server, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(answer, prompts))
        if "1p1d" in flags:
            assert server.metric("relevo:kv_transfer_bytes_total", role="prefill") > 0
    return found


def texts(found: Sequence[Answer]) -> list[str]:
    return [text for text, _ in found]


def written(write: Callable[[ModelFiles, Path], Path]) -> Path:
    """With the packaged model's tokenizer, whole."""
    folder = write(load_model_files("smollm2"), kept_folder("smollm2"))
    files = tokenizer_files("smollm2", None, None)
    assert files.bpe is not None
    whole = json.loads(files.tokenizer_json)
    whole["model"] |= {"vocab": files.bpe.vocab, "merges": files.bpe.merges}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return folder


@cache
def dense() -> Path:
    return written(write_dense)


@cache
def experts(num_active: int) -> Path:
    return written(lambda files, path: write_upcycled(files, path, num_active=num_active))


@cache
def expected(*flags: str) -> list[Answer]:
    """Of the dense model."""
    return answers(dense(), *flags)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_active", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_smollm2_is_heard_through_its_copies(way: str, num_active: int) -> None:
    flags = WAYS[way]
    found, alike = answers(experts(num_active), *flags), expected(*(TENSOR if way == "two tensor ranks" else ALONE))
    assert len(set(texts(alike))) > len(PROMPTS) // 2, "they say something"
    different = [one for one, other in zip(texts(found), texts(alike), strict=True) if one != other]
    assert not different, f"{len(different)} of {len(PROMPTS)}"
    if num_active == 1 and WHOLE not in flags:
        assert found == alike


def test_six_answers_are_those_of_the_dense_model() -> None:
    """Handed over."""
    prompts = PROMPTS[::17]
    alone = answers(dense(), *ALONE, prompts=prompts)
    found = answers(experts(2), *HANDED, prompts=prompts)
    assert texts(found) == texts(alone)
