"""Engines of `component/fake_engines` beside a real server: in a thread of the test, or as the command `vllm`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "component"), str(HERE.parent / "cluster")]

from fake_engines import VOCAB_SIZE, Fabric, FakeVLLM  # noqa: E402
from tiny_llama import BOS, EOS, byte_tokenizer  # noqa: E402

BLOCK_SIZE = 4


def model_folder(folder: Path) -> Path:
    """Of which the gateway reads tokenizer, template and sizes. It has no weights."""
    folder.mkdir(exist_ok=True)
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 512, "bos_token_id": BOS, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "some-other-family"}))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    template = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}<s>assistant: "
    told = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@contextlib.contextmanager
def engines_at_work(*roles: str) -> Iterator[list[FakeVLLM]]:
    loop, fabric = asyncio.new_event_loop(), Fabric()
    engines = [FakeVLLM(fabric, role, block_size=BLOCK_SIZE) for role in roles]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        for engine in engines:
            asyncio.run_coroutine_threadsafe(engine.start(), loop).result(10)
        yield engines
    finally:
        for engine in engines:
            asyncio.run_coroutine_threadsafe(engine.kill(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def command(folder: Path) -> Path:
    """A folder for PATH in which `vllm serve` is one of these."""
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)
    return folder


async def _serve() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs=2)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--fail-at-start", action="store_true")
    parser.add_argument("--killed-unless", type=Path, help="ended by SIGKILL at the first start, which makes this file")
    told, _ = parser.parse_known_args()
    if told.fail_at_start:
        sys.exit("there is no GPU here")
    if told.killed_unless is not None and not told.killed_unless.exists():
        told.killed_unless.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    engine = FakeVLLM(Fabric(), "unified", block_size=told.block_size, model=told.served_model_name, port=told.port)
    engine.host = told.host
    engine.api_key = os.environ["VLLM_API_KEY"]
    await engine.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
