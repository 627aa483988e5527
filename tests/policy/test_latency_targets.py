"""Targets say their unit where seconds are hardly meant: milliseconds that are read as seconds never show."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from relevo.settings import Settings


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("0.5", 0.5), ("60", 60.0), (0.25, 0.25), ("90s", 90.0), (".5s", 0.5), ("1e-1", 0.1)],
)
def test_a_target_is_seconds_or_has_a_unit(written: object, seconds: float) -> None:
    assert Settings(slo_ttft_p90=written).slo_ttft_p90 == pytest.approx(seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        ("slo_ttft_p90", "500", "500 without a unit is 500 seconds, and more than 60 are hardly meant; write 500ms"),
        ("slo_ttft_p90", 500.0, "or 500s if they are"),
        ("slo_itl_p90", "50", "50 without a unit is 50 seconds, and more than 5 are hardly meant; write 50ms"),
        ("slo_itl_p90", "0ms", "greater than 0"),
        ("slo_itl_p90", "50 msec", "valid number"),
        ("slo_ttft_p90", "nan", "finite"),
        ("slo_ttft_p90", "inf", "more than 60 are hardly meant"),
        ("slo_ttft_p90", "999999999999s", "less than or equal"),
    ],
)
def test_what_is_no_target_is_refused(name: str, written: object, said: str) -> None:
    """Red when 500 is taken for eight minutes without a word."""
    with pytest.raises(ValidationError, match=said):
        Settings(**{name: written})  # type: ignore[arg-type]


def test_what_a_target_was_set_to_in_the_environment_is_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_SLO_ITL_P90", "50ms")
    assert Settings().slo_itl_p90 == pytest.approx(0.05)
    monkeypatch.setenv("RELEVO_SLO_ITL_P90", "50")
    with pytest.raises(ValidationError, match="write 50ms"):
        Settings()
