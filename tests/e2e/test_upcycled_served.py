"""SmolLM2 with experts that are copies of its MLP, and random routers, says what SmolLM2 says, on any ranks.

A hundred prompts over each way of serving it. Red when a rank takes another's experts, when a handoff loses a part, or
when experts are weighed wrongly.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stack import stack

from relevo.build.vocabulary import tokenizer_files
from relevo.engine.loaders.resolve import load_model_files
from upcycled import write_dense, write_upcycled

FLAGS = ("--num-kv-blocks", "256", "--max-model-len", "256", "--max-num-seqs", "16", "--kv-cache-dtype", "float32")
WAYS = {
    "1p1d": ("--topology", "1p1d"),
    "two tensor ranks": ("--topology", "unified", "--tensor-parallel-size", "2"),
    "two stages": ("--topology", "unified", "--pipeline-parallel-size", "2"),
    "experts whole on two ranks": ("--topology", "unified", "--tensor-parallel-size", "2", "--enable-expert-parallel"),
}
TOPICS = ("rivers", "bread", "the moon", "a small town", "trains", "winter", "music", "an old map", "bees", "the sea")
BEGINNINGS = (
    "Write about", "Once upon a time,", "The history of", "A short story of", "In the morning,", "What is known of",
    "My grandmother told me of", "Scientists have found that", "Nothing is as quiet as", "It is hard to imagine",
)  # fmt: skip
PROMPTS = [f"{beginning} {topic}" for beginning in BEGINNINGS for topic in TOPICS]


def answers(folder: Path, *flags: str) -> list[str]:
    def answer(prompt: str) -> str:
        return str(server.complete(prompt, max_tokens=24)["choices"][0]["text"])

    with stack(str(folder), *flags, *FLAGS) as server, ThreadPoolExecutor(8) as pool:
        return list(pool.map(answer, PROMPTS))


def tokenizer_json() -> str:
    """Of the packaged model, whole."""
    files = tokenizer_files("smollm2", None, None)
    assert files.bpe is not None
    whole = json.loads(files.tokenizer_json)
    whole["model"] |= {"vocab": files.bpe.vocab, "merges": files.bpe.merges}
    return json.dumps(whole)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(3600)
def test_smollm2_is_heard_through_its_copies(tmp_path: Path) -> None:
    files = load_model_files("smollm2")
    dense, experts = write_dense(files, tmp_path / "dense"), write_upcycled(files, tmp_path / "experts")
    for folder in (dense, experts):
        (folder / "tokenizer.json").write_text(tokenizer_json())
    expected = answers(dense, "--topology", "unified")
    assert len(set(expected)) > len(PROMPTS) // 2, "they say something"
    for name, flags in WAYS.items():
        found = answers(experts, *flags)
        different = [prompt for prompt, one, other in zip(PROMPTS, found, expected, strict=True) if one != other]
        assert not different, f"{name}: {len(different)} of {len(PROMPTS)}"
