"""Rules of a script: which one a prompt meets, what it says, and what is said of a file that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.build.serve import plan_serving
from relevo.core.errors import InvalidRequest, SettingsError
from relevo.core.request import SamplingParams
from relevo.engine.fake_model import SCRIPTED_MODEL, FakeModel
from relevo.engine.fake_script import Line, packed, script_of, text_of, unpacked
from relevo.settings import Settings

TOKENIZER = Tokenizer.from_str(fake_tokenizer_files().tokenizer_json)
EOS = 256


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def said(rules: list[dict[str, Any]], prompt: str, sample_index: int = 0) -> str:
    rule = script_of({"rule": rules}).rule_for(ids_of(prompt))
    return text_of(rule.line(sample_index).token_ids)


@pytest.mark.parametrize(
    "text", ["", "plain", "naïve 🚀\r\n\t\x00\x7f\xad", "a<|end|>b", "".join(map(chr, range(0x180)))]
)
def test_a_prompt_is_read_as_its_tokenizer_wrote_it(text: str) -> None:
    """Red when the ids of bytes are not those of the tokenizer."""
    assert text_of(ids_of(text)) == text


def test_bytes_that_are_no_text_are_read_nevertheless() -> None:
    assert text_of([*ids_of("a"), *ids_of("🚀")[:2], EOS]) == "a\ufffd<|end|>"


@pytest.mark.parametrize(
    ("rule", "speaks"),
    [
        ({}, True),
        ({"contains": "tide"}, True),
        ({"contains": ["tide", "Brest"]}, True),
        ({"contains": ["tide", "Kiel"]}, False),
        ({"lacks": "Kiel"}, True),
        ({"lacks": ["Kiel", "tide"]}, False),
        ({"regex": r"Br\w+t"}, True),
        ({"regex": "^Brest"}, False),
        ({"contains": "tide", "tail_chars": 6}, False),
        ({"contains": "Brest", "tail_chars": 6}, True),
        ({"lacks": "tide", "tail_chars": 6}, True),
        ({"count": [{"text": "the", "at_least": 2}]}, True),
        ({"count": [{"text": "the", "at_least": 3}]}, False),
        ({"count": [{"text": "the", "at_most": 1}]}, False),
        ({"count": [{"text": "the", "at_most": 2}, {"text": "Kiel", "at_most": 0}]}, True),
        ({"contains": "tide", "lacks": "Brest"}, False),
    ],
)
def test_a_rule_speaks_where_all_holds_that_it_asks_for(rule: dict[str, Any], speaks: bool) -> None:
    rules = [{"say": "yes", **rule}, {"say": "no"}]
    assert said(rules, "the tide in the port of Brest") == ("yes" if speaks else "no")


def test_the_first_rule_that_matches_speaks() -> None:
    rules = [{"contains": "b", "say": "one"}, {"contains": "a", "say": "two"}, {"say": "three"}]
    assert [said(rules, prompt) for prompt in ("ab", "a", "c")] == ["one", "two", "three"]


def test_continuations_take_turns_with_the_texts() -> None:
    assert [said([{"say": ["é", "🚀"]}], "x", index) for index in range(3)] == ["é", "🚀", "é"]


def test_a_prompt_without_a_rule_is_refused_with_its_end() -> None:
    script = script_of({"rule": [{"say": "a", "contains": "b"}]})
    with pytest.raises(InvalidRequest, match=r"ends with 'cd'; add one to the file of --script"):
        script.rule_for(ids_of("cd"))


def test_a_script_is_the_same_after_its_way_to_a_worker() -> None:
    script = script_of(
        {"rule": [{"say": ["ü\n"], "pace_s": 0.25, "count": [{"text": "x", "at_most": 2}], "end": "none"}]}
    )
    assert unpacked(packed(script)) == script


# ---- tokens ----------------------------------------------------------------------------------------------------------


def answer(line: Line, **sampling: Any) -> list[int]:
    params = SamplingParams(seed=1, temperature=0, **({"max_tokens": 9} | sampling))
    return FakeModel().reference_tokens([1, 2, 3], params, eos_token_ids=(EOS,), line=line)


def test_a_line_ends_with_an_end_token_or_comes_again() -> None:
    assert answer(Line((5, 6), ends=True)) == [5, 6, EOS]
    assert answer(Line((), ends=True)) == [EOS]
    assert answer(Line((5, 6), ends=False)) == [5, 6, 5, 6, 5, 6, 5, 6, 5]
    assert answer(Line((5, 6), ends=True), max_tokens=1) == [5]


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 6}])
def test_a_line_that_may_not_end_yet_is_followed_by_the_models_own_tokens(sampling: dict[str, Any]) -> None:
    tokens = answer(Line((5, 6), ends=True), **sampling)
    assert tokens[:2] == [5, 6] and EOS not in tokens[:6] and len(tokens) > 6


# ---- files -----------------------------------------------------------------------------------------------------------


def plan_with(folder: Path, text: str, name: str = "s.toml", **settings: Any) -> Any:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return plan_serving(Settings(**({"model": "fake", "script": str(path), "database_url": "memory"} | settings)))


@pytest.mark.parametrize("name", ["s.toml", "s.json"])
def test_a_script_is_toml_or_json_and_makes_room_for_long_prompts(tmp_path: Path, name: str) -> None:
    """Red when an agent's prompt of 200,000 bytes does not fit, or when workers do not get the script."""
    text = '[[rule]]\nsay = "é"\npace_s = 0.5' if name == "s.toml" else '{"rule": [{"say": "é", "pace_s": 0.5}]}'
    (model,) = plan_with(tmp_path, text, name, topology="1p1d").models
    assert model.served.max_model_len == SCRIPTED_MODEL.max_position > 200_000
    for worker in model.workers:
        assert unpacked(worker.script) == script_of({"rule": [{"say": "é", "pace_s": 0.5}]})
        assert worker.num_blocks * worker.block_size >= 4 * SCRIPTED_MODEL.max_position


def test_what_is_asked_of_the_cache_wins_over_the_room_for_long_prompts(tmp_path: Path) -> None:
    (model,) = plan_with(tmp_path, '[[rule]]\nsay = ""', num_kv_blocks=20).models
    assert (model.workers[0].num_blocks, model.served.max_model_len) == (20, 320)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Object missing required field `rule`"),
        ("rule = []", "has no rule; write one below"),
        ("[[rule]]", "rule 1: Object missing required field `say`"),
        ('[[rule]]\nsay = "a"\n[[rule]]\nsay = 7', "rule 2: say: Expected `str | array`, got `int`"),
        ('[[rule]]\nsay = "a"\nsays = "b"', "rule 1: Object contains unknown field `says`"),
        ('[[rule]]\nsay = "a"\nregex = "("', "rule 1: regex '(' is none that Python's re reads: missing )"),
        ('[[rule]]\nsay = "a"\nend = "eos"', "rule 1: end: Invalid enum value 'eos'"),
        ("[[rule]]\nsay = []", "rule 1: say holds no text"),
        ('[[rule]]\nsay = ""\nend = "none"', "rule 1: say is empty and end is"),
        ('[[rule]]\nsay = "a"\ntail_chars = 0', "rule 1: tail_chars is 0; use at least 1"),
        ('[[rule]]\nsay = "a"\npace_s = -1', "rule 1: pace_s is -1; use 0 to 60 seconds"),
        ('[[rule]]\nsay = "a"\ncount = [{text = ""}]', "rule 1: count has an empty text"),
        ('[[rule]]\nsay = "a"\ncount = [{text = "b", at_least = 2, at_most = 1}]', "no prompt has that"),
        ("[[rule", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_script_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as found:
        plan_with(tmp_path, text)
    assert str(found.value).startswith(f"--script {tmp_path / 's.toml'}") and sentence in str(found.value)


def test_a_script_that_is_not_there_or_not_for_this_model_is_refused(tmp_path: Path) -> None:
    lost = tmp_path / "lost.toml"
    with pytest.raises(SettingsError, match=r"--script .*lost.toml cannot be read"):
        plan_serving(Settings(model="fake", script=str(lost), database_url="memory"))
    with pytest.raises(SettingsError, match="MODEL is smollm2; use MODEL fake, or leave --script out"):
        plan_with(tmp_path, '[[rule]]\nsay = "a"', model="smollm2")
