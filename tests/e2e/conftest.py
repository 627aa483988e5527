from __future__ import annotations

from collections.abc import Iterator

import pytest
from stack import Stack, stack


@pytest.fixture(scope="module")
def split() -> Iterator[Stack]:
    with stack("fake", "--topology", "1p1d", "--num-kv-blocks", "512", "--max-model-len", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def unified() -> Iterator[Stack]:
    with stack("fake", "--topology", "unified", "--num-kv-blocks", "512", "--max-model-len", "2048") as running:
        yield running
