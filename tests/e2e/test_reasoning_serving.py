"""Reasoning over real processes: counted, told apart and the same wherever it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stack import stack

SCRIPT = """
[[rule]]
say = ["<think>hm ü</think>Yes.", "<think>a</think>No."]
"""
COUNTED = len("<think>hm ü</think>".encode()) + len("<think>a</think>")  # a token is a byte


@pytest.mark.parametrize("topology", ["unified", "1p1d"])
def test_tokens_of_reasoning_are_counted_in_every_topology_and_over_all_choices(tmp_path: Path, topology: str) -> None:
    """Red if the count is made where it is lost at a handoff, or of one choice alone."""
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    with stack("fake", "--script", str(script), "--topology", topology, "--reasoning-parser", "qwen3") as server:
        server.wait_ready()
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "n": 2, "max_tokens": 100}
        answer = server.post("/v1/chat/completions", body)
    shown = [(choice["message"]["reasoning_content"], choice["message"]["content"]) for choice in answer["choices"]]
    assert shown == [("hm ü", "Yes."), ("a", "No.")]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == COUNTED
