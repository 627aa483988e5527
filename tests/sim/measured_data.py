"""Where measured data lies that is not part of the repository, for tests that can do without it."""

from __future__ import annotations

from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


def measured_data() -> Path:
    """A folder `shared/data` beside the checkout or above it. Skips the test where there is none."""
    for parent in _REPOSITORY.parents:
        found = parent / "shared" / "data"
        if (found / "profiles").is_dir():
            return found
    pytest.skip("no measured data: shared/data is not beside the repository")
