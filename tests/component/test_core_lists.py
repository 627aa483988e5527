"""Cores may be named in one flag, in several, in the environment's text and as numbers of a file, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.cli.options import make_settings


@pytest.mark.parametrize("given", [["0,1"], ["0", "1"], "0,1", [0, 1]])
def test_cores_are_the_same_however_they_are_named(given: Any) -> None:
    """Red when the one text of `--cores 0,1` counts as the name of a single core."""
    assert make_settings({"cores": given}).cores == ("0", "1")
