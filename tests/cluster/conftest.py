"""Machines for the tests of this folder: `make_network(...)` makes a `machines.Network` that ends with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from machines import Network, why_not


@pytest.fixture
def make_network() -> Iterator[Callable[..., Network]]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as made:
        yield lambda *args, **kwargs: made.enter_context(Network(*args, **kwargs))
