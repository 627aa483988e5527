"""The clients: how each is told of a server, how it is run and run again, and what it sends of its session.

One entry each. Their guide is docs/guides/agents.md, which shows the same configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from task import AGAIN, FIRST, Lines, Round, hermes_call

MODEL = "fake"
KEY = "none-needed"
_SAID = "I run the command that prints the marker and look at what it says.\n"


@dataclass(frozen=True)
class Client:
    name: str
    package: str
    program: str
    arguments: Callable[[Round, Path], list[str]]  # of a round, in a project folder
    lines: Lines
    session: str  # what the server knows its session by; "content": it sends nothing
    configure: Callable[[Path, str], None] = lambda home, url: None  # writes into its home folder
    environment: Mapping[str, str] = field(default_factory=dict)  # `{url}` stands for the server's
    setup: tuple[str, ...] = ()  # arguments of a run before the first
    continues: bool = True  # the second run goes on with the first one's conversation
    writes: str = ""  # a file of the project that holds the result, instead of the output


def shell(tool: str, argument: str = "command", **more: object) -> Lines:
    """A tool that takes the command as text, and a last word."""
    return Lines(
        call=lambda each: _SAID + hermes_call(tool, {argument: each.command, **more}),
        last=lambda each: each.last_word,
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# ---- opencode --------------------------------------------------------------------------------------------------------


def _opencode(home: Path, url: str) -> None:
    model = {"name": MODEL, "limit": {"context": 200_000, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Relevo",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {MODEL: model},
    }
    config = {"model": f"relevo/{MODEL}", "share": "disabled", "autoupdate": False, "provider": {"relevo": provider}}
    _write(home / ".config/opencode/opencode.json", json.dumps(config))


# ---- codex -----------------------------------------------------------------------------------------------------------


def _codex(home: Path, url: str) -> None:
    _write(
        home / ".codex/config.toml",
        f'model = "{MODEL}"\nmodel_provider = "relevo"\n\n[model_providers.relevo]\nname = "Relevo"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "RELEVO_KEY"\n',
    )


def _codex_arguments(each: Round, project: Path) -> list[str]:
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return (
        ["exec", *flags, each.question] if each.name == FIRST else ["exec", "resume", "--last", *flags, each.question]
    )


# ---- pi --------------------------------------------------------------------------------------------------------------


def _pi(home: Path, url: str) -> None:
    model = {"id": MODEL, "contextWindow": 200_000, "maxTokens": 4096, "compat": {"sendSessionAffinityHeaders": True}}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": KEY, "models": [model]}
    _write(home / ".pi/agent/models.json", json.dumps({"providers": {"relevo": provider}}))


# ---- continue --------------------------------------------------------------------------------------------------------


def _continue(home: Path, url: str) -> None:
    _write(
        home / "continue.yaml",
        f"name: relevo\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: relevo\n    provider: openai\n"
        f"    model: {MODEL}\n    apiBase: {url}/v1\n    apiKey: {KEY}\n    capabilities: [tool_use]\n"
        "    roles: [chat]\n",
    )


# ---- mistral-vibe ----------------------------------------------------------------------------------------------------


def _vibe(home: Path, url: str) -> None:
    _write(
        home / ".vibe/config.toml",
        'active_model = "relevo"\nenable_telemetry = false\nenable_update_checks = false\n\n'
        f'[[providers]]\nname = "relevo"\napi_base = "{url}/v1"\napi_key_env_var = "RELEVO_KEY"\n\n'
        f'[[models]]\nname = "{MODEL}"\nprovider = "relevo"\nalias = "relevo"\n',
    )


# ---- the table -------------------------------------------------------------------------------------------------------

CLIENTS = (
    Client(
        "opencode",
        "opencode-ai",
        "opencode",
        lambda each, project: ["run", *(["-c"] if each.name != FIRST else []), each.question],
        Lines(shell("bash").call, shell("bash").last, side=(("You are a title generator", "A marker"),)),
        "x-session-affinity",
        _opencode,
        {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Client(
        "codex",
        "@openai/codex",
        "codex",
        _codex_arguments,
        shell("exec_command", "cmd"),
        "body.session_id",  # of client_metadata
        _codex,
        {"RELEVO_KEY": KEY},
    ),
    Client(
        "claude-code",
        "@anthropic-ai/claude-code",
        "claude",
        lambda each, project: ["-p", *(["-c"] if each.name != FIRST else []), each.question, "--allowedTools", "Bash"],
        shell("Bash"),
        "x-claude-code-session-id",
        environment={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    Client(
        "pi",
        "@mariozechner/pi-coding-agent",
        "pi",
        lambda each, project: [
            *("-p", "--provider", "relevo", "--model", MODEL),
            *(["-c"] if each.name != FIRST else []),
            each.question,
        ],
        shell("bash"),
        "x-session-affinity",
        _pi,
        {"PI_OFFLINE": "1"},
    ),
    Client(
        "cline",
        "cline",
        "cline",
        lambda each, project: ["-P", "openai-compatible", "-m", MODEL, "--json", each.question],
        Lines(
            lambda each: _SAID + hermes_call("run_commands", {"commands": [each.command]}),
            lambda each: each.last_word,
        ),
        "content",
        setup=("auth", "-p", "openai-compatible", "-b", "{url}/v1", "-k", KEY, "-m", MODEL),
        continues=False,
    ),
    Client(
        "qwen-code",
        "@qwen-code/qwen-code",
        "qwen",
        lambda each, project: ["-y", *(["-c"] if each.name != FIRST else []), "-p", each.question],
        shell("run_shell_command", is_background=False),
        "content",
        environment={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL},
    ),
    Client(
        "continue-cn",
        "@continuedev/cli",
        "cn",
        lambda each, project: [
            *("-p", "--auto", "--config", str(project.parent / "home/continue.yaml")),
            *(["--resume"] if each.name != FIRST else []),
            each.question,
        ],
        shell("Bash"),
        "content",
        _continue,
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
    ),
    Client(
        "mistral-vibe",
        "mistral-vibe",
        "vibe",
        lambda each, project: [
            *(["-c"] if each.name != FIRST else []),
            *("--auto-approve", "--trust", "-p", each.question),
        ],
        shell("bash"),
        "x-affinity",
        _vibe,
        {"RELEVO_KEY": KEY},
    ),
    Client(
        "mini-swe-agent",
        "mini-swe-agent",
        "mini",
        lambda each, project: ["-y", "--exit-immediately", "-m", f"openai/{MODEL}", "-t", each.question],
        Lines(
            lambda each: _SAID + hermes_call("bash", {"command": each.command}),
            lambda each: (
                each.last_word + "\n" + hermes_call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
            ),
        ),
        "content",
        environment={
            "OPENAI_API_BASE": "{url}/v1",
            "OPENAI_API_KEY": KEY,
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
        },
        continues=False,
    ),
    Client(
        "aider",
        "aider-chat",
        "aider",
        lambda each, project: [
            *("--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-auto-lint", "--no-check-update"),
            *("--no-show-model-warnings", "--analytics-disable"),
            *(["--restore-chat-history"] if each.name == AGAIN else []),
            *("--message", each.question, "marker.txt"),
        ],
        Lines(lambda each: f"{_SAID}\nmarker.txt\n```\n{each.last_word}\n```\n"),
        "content",
        environment={"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": KEY},
        writes="marker.txt",
    ),
)
