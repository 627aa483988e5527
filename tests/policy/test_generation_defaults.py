"""What a request that says nothing samples with: makers, overrides, and values that no request may have."""

from __future__ import annotations

import math

import pytest

from relevo.core.errors import ModelFileError, SettingsError
from relevo.policy.host.generation_defaults import defaults_note, generation_defaults

QWEN = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "eos_token_id": 1}


def test_makers_values_are_taken_and_other_fields_left_alone() -> None:
    assert generation_defaults(QWEN | {"min_p": None, "max_new_tokens": 9}, "file", {}) == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "repetition_penalty": 1.05,
        "max_new_tokens": 9,
    }


def test_overrides_win_one_by_one_also_over_values_that_are_wrong() -> None:
    defaults = generation_defaults(QWEN | {"temperature": "warm"}, "file", {"temperature": 0, "min_p": 0.1})
    assert (defaults["temperature"], defaults["min_p"], defaults["top_k"]) == (0.0, 0.1, 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, 101, "0.7", True, math.nan, math.inf, [0.7])),
        *(("top_p", value) for value in (0, 1.01, -1)),
        *(("top_k", value) for value in (-2, 1.5, 2**31)),
        *(("min_p", value) for value in (-0.1, 1.1)),
        *(("repetition_penalty", value) for value in (0, -1, 101)),
        *(("max_new_tokens", value) for value in (0, -1, 2.5)),
    ],
)
def test_a_value_that_no_request_may_have_is_refused_with_its_rule(name: str, value: object) -> None:
    """Red when it would surface as an error of every request, or as other draws than its writer meant."""
    with pytest.raises(ModelFileError, match=rf"^the file: {name} is .* must be .*; mend it, or"):
        generation_defaults({name: value}, "the file", {})
    with pytest.raises(SettingsError, match=rf"^--override-generation-config: {name} is"):
        generation_defaults({}, "the file", {name: value})


def test_an_override_of_what_does_not_exist_names_what_does() -> None:
    with pytest.raises(SettingsError, match="'temp'; one of temperature, top_k"):
        generation_defaults({}, "file", {"temp": 1})


def test_the_line_at_start_says_values_source_and_what_is_left_out() -> None:
    line = defaults_note({"temperature": 0.7, "top_k": 20}, QWEN | {"no_repeat_ngram_size": 3, "num_beams": 1}, "file")
    assert "temperature 0.7, top_k 20, from file" in line and line.endswith(
        "no_repeat_ngram_size in file is not implemented"
    )
    assert "neutral" in defaults_note({}, {}, "file")
