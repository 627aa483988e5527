"""What a simulated world logs is not told as if it had happened here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only() -> Iterator[None]:
    """Of what simulated workers and gateways log: they are none of this machine, and some die on purpose."""
    log = logging.getLogger("relevo")
    before = log.level
    log.setLevel(max(before, logging.ERROR))
    try:
        yield
    finally:
        log.setLevel(before)
