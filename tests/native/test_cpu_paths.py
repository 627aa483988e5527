"""Which instruction paths the native module offers, and what it says when one is forced."""

from __future__ import annotations

import pytest

native = pytest.importorskip("relevo_native._native")


def test_portable_is_always_there_and_comes_first() -> None:
    assert native.available_paths()[0] == "portable"


def test_the_best_path_is_chosen_unless_one_is_forced() -> None:
    paths = native.available_paths()
    assert native.choose_path("")[0] == paths[-1]
    for path in paths:
        name, reason = native.choose_path(path)
        assert name == path
        assert path in reason


def test_a_path_that_cannot_run_is_refused_with_the_paths_that_can() -> None:
    with pytest.raises(ValueError, match=r"no CPU path 'mmx'.*available: portable"):
        native.choose_path("mmx")


def test_a_path_of_this_build_that_cannot_run_here_says_why() -> None:
    """In the choice of another, and when it is forced."""
    available = native.available_paths()
    for path in {"avx512", "amx"} - set(available) if "avx2" in available else ():
        assert f"; {path} lacks " in native.choose_path("")[1]
        with pytest.raises(ValueError, match=f"CPU path '{path}' cannot be used here, it lacks .*available: portable"):
            native.choose_path(path)
