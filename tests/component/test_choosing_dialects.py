"""Which formats a model is served with: from its template, or as the operator named them."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
from scripted_gateway import byte_tokenizer
from tokenizers import Tokenizer as Backend

from relevo.build.configs import ServedModelConfig
from relevo.build.dialects import Dialect, dialect_of
from relevo.core.errors import SettingsError
from relevo.core.model import TokenizerFiles
from relevo.gateway.dialects.composed import ComposedParsers
from relevo.gateway.text.chat_template import ModelTemplates
from relevo.gateway.text.detokenizer import IncrementalDetokenizer
from relevo.gateway.text.output_parser import plain_text
from relevo.gateway.text.tokenizer import Tokenizer
from relevo.settings import Settings

MESSAGES = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
HERMES = MESSAGES + "{{ tools | tojson if tools else '' }}<tool_call>{{ calls }}</tool_call><think></think>"
MISTRAL = MESSAGES + "{{ tools | tojson if tools else '' }}[TOOL_CALLS]{{ calls }}[ARGS]"
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|other|>", "<|action_start|>", "<|plugin|>")


def tokenizer_files(template: str | None, named: dict[str, str] | None = None) -> TokenizerFiles:
    """Bytes, and marks as special tokens."""
    backend = Backend.from_str(byte_tokenizer()._backend.to_str())
    backend.add_special_tokens(list(MARKS))
    return TokenizerFiles(
        tokenizer_json=backend.to_str(),
        chat_template=template,
        named_templates=named or {},
        bos_token=None,
        eos_token=None,
    )


def config(**changed: Any) -> ServedModelConfig:
    """Of what a dialect depends on; the rest has no meaning here."""
    blank = {str: "x", int: 1, float: 1.0, dict: {}, tuple: ()}
    fields = msgspec.structs.fields(ServedModelConfig)
    needed = {each.name: each.type for each in fields if each.required}
    given: dict[str, Any] = {
        name: blank.get(getattr(kind, "__origin__", kind))
        if isinstance(kind, type) or hasattr(kind, "__origin__")
        else None
        for name, kind in needed.items()
    }
    return ServedModelConfig(**(given | {"served_model_names": ("tiny",)} | changed))


def dialect(
    template: str | None, named: dict[str, str] | None = None, *, may_emulate: bool = True, **asked: Any
) -> Dialect:
    files = tokenizer_files(template, named)
    templates = ModelTemplates.from_files(files, may_emulate=may_emulate)
    return dialect_of(config(**asked), files, templates, Tokenizer(files))


def names(found: Dialect) -> tuple[str | None, str | None]:
    return (
        found.tool_format.name if found.tool_format else None,
        found.reasoning_format.name if found.reasoning_format else None,
    )


def test_the_template_says_which_formats_they_are() -> None:
    assert names(dialect(HERMES)) == ("hermes", "deepseek_r1")
    assert names(dialect(MISTRAL)) == ("mistral", None)


def test_a_template_for_tools_says_how_calls_are_written() -> None:
    """As requests with tools are rendered with it. Red if the one for plain chats were asked."""
    assert names(dialect(MESSAGES, {"tool_use": MISTRAL})) == ("mistral", None)


def test_where_tools_are_told_as_text_calls_are_read_in_the_form_that_was_told() -> None:
    assert names(dialect(MESSAGES)) == ("hermes", None)
    assert names(dialect(MESSAGES, may_emulate=False)) == (None, None)


def test_names_win_over_the_template_and_none_leaves_text() -> None:
    assert names(dialect(HERMES, tool_call_parser="mistral", reasoning_parser="granite")) == ("mistral", "granite")
    found = dialect(HERMES, tool_call_parser="none", reasoning_parser="none")
    assert names(found) == (None, None)
    assert found.make_parser is plain_text
    assert isinstance(dialect(HERMES).make_parser, ComposedParsers)


@pytest.mark.parametrize(
    ("field", "flag"), [("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser")]
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(field: str, flag: str) -> None:
    with pytest.raises(SettingsError, match=rf"{flag} hermez is not known; use auto, none, .*mistral"):
        dialect(HERMES, **{field: "hermez"})


def test_the_start_log_names_what_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="relevo.gateway"):
        dialect(HERMES, reasoning_parser="none")
    assert "tiny: tool calls hermes (from the chat template), reasoning none" in caplog.text


def test_the_start_log_says_where_tools_are_told_as_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="relevo.gateway"):
        dialect(MESSAGES)
    assert "tiny: tool calls hermes (as they are told), reasoning none" in caplog.text


def test_a_template_whose_calls_have_no_known_form_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="relevo.gateway"):
        assert names(dialect(MESSAGES + "{{ tools | tojson if tools else '' }}")) == (None, None)
    assert "--tool-call-parser" in caplog.text


def test_special_tokens_that_spell_marks_are_text_and_others_are_not() -> None:
    """Red if a mark were skipped as special tokens are: then no call of such a vocabulary would be seen."""
    files = tokenizer_files(HERMES)
    tokenizer = Tokenizer(files)
    kept = dialect(HERMES).markup_token_ids
    assert kept == {tokenizer.token_to_id(mark) for mark in MARKS[:4]}
    detokenizer = IncrementalDetokenizer(tokenizer, kept_token_ids=kept)
    written = tokenizer.encode("<think>a</think><|other|><tool_call>", add_special_tokens=False)
    text = "".join(detokenizer.add(token_id) for token_id in written) + detokenizer.flush()
    assert text == "<think>a</think><tool_call>"
    plugin = dialect(HERMES, tool_call_parser="internlm", reasoning_parser="none").markup_token_ids
    assert plugin == {tokenizer.token_to_id(mark) for mark in MARKS[5:]}


def test_a_start_as_vllm_is_started_is_taken() -> None:
    settings = Settings(enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3")
    assert (settings.tool_call_parser, settings.reasoning_parser) == ("hermes", "qwen3")
    assert json.loads(settings.model_dump_json())["enable_auto_tool_choice"] is True
