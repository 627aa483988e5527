"""The table of clients is whole: each is pinned, and has a script that the engine takes and that plays every round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients import CLIENTS, Client
from pinned import packages
from task import ROUNDS, script

from relevo.build.fake_tokenizer import fake_tokenizer_files
from relevo.engine.fake_script import Script, script_of, text_of
from relevo.gateway.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(fake_tokenizer_files())
GUIDE = Path(__file__).parents[2] / "docs/guides/agents.md"


def said(rules: Script, prompt: str) -> str:
    return text_of(rules.rule_for(TOKENIZER.encode(prompt)).line(0).token_ids)


def test_every_client_is_pinned_and_every_pin_is_used() -> None:
    assert sorted(packages()) == sorted(client.package for client in CLIENTS)


def test_the_guide_shows_every_client() -> None:
    """Red when one is added without how to point it at a server, or its last run is not told."""
    page = GUIDE.read_text(encoding="utf-8")
    assert all(f"| {client.name} {packages()[client.package].version} |" in page for client in CLIENTS)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_script_calls_and_then_says_what_only_the_result_holds(client: Client) -> None:
    """Also where the conversation holds the rounds before. Red when a round is answered with another one's words."""
    rules = script_of(json.loads(script(client.lines)))
    history = ""
    for each in ROUNDS:
        history += each.question
        first = said(rules, history)
        if client.lines.last is None:
            assert each.last_word in first
            continue
        assert each.command in first and each.result not in first
        history += each.result
        assert each.last_word in said(rules, history)
