"""For the tests of this folder: `make_network(...)` makes a `machines.Network`, `boxes` what runs on its machines. Both
end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from boxes import Boxes
from machines import Network, why_not


@pytest.fixture
def make_network() -> Iterator[Callable[..., Network]]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as made:
        yield lambda *args, **kwargs: made.enter_context(Network(*args, **kwargs))


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    with Boxes(tmp_path) as made:
        yield made
