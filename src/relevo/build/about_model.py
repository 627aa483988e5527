"""Which of several models an error at start is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from relevo.core.errors import StartError


@contextlib.contextmanager
def about_model(section: str) -> Iterator[None]:
    """A StartError raised inside names the section of the file of models; without one there is only one model."""
    try:
        yield
    except StartError as error:
        if not section:
            raise
        raise type(error)(f"model {section}: {error.message}") from error
