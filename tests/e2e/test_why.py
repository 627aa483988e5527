"""`relevo why` as a command, against a server of its own processes."""

from __future__ import annotations

import subprocess
import sys

from stack import Stack


def why(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relevo", "why", *arguments, "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_request_is_told_by_the_id_of_its_answer(split: Stack) -> None:
    """Red when the server's words and the command's are no longer the same."""
    answer = split.complete([5, 6, 7] * 20, max_tokens=12, ignore_eos=True)
    done = why(answer["id"], url=split.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{answer['id']}, {split.model}, finished, 60 prompt tokens")
    assert "12 output tokens" in done.stdout
    assert "first token after" in done.stdout
    told = split.get(f"/v1/requests/{answer['id']}")
    for phase in told["phases"]:
        assert f"  {phase['name'].replace('_', ' ')} " in done.stdout
    total_s = sum(phase["took_s"] for phase in told["phases"])
    assert abs(total_s - told["e2e_s"]) <= 0.02 * told["e2e_s"]
