"""Requests in the shapes in which eleven clients send them: paths, headers, fields, nulls, parts; the words are ours.

Each is the second turn of a task: a question, a call of a tool, its result. `rendered` is what follows the tools in the
prompt, as the fake model's template writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPENAI_SDK = {"x-stainless-lang": "js", "x-stainless-retry-count": "0", "x-stainless-runtime": "node"}
SESSION = "6f1c2d3e-0000-4000-8000-00000000abcd"
COMMAND = "echo marker-$((40+2))"


@dataclass(frozen=True, kw_only=True)
class ClientRequest:
    client: str
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any]
    rendered: str = ""
    session: str = "content"  # what names it

    @property
    def tools(self) -> list[tuple[str, Any]]:
        """Name and parameters of each that can be called."""
        return [each for given in self.body.get("tools", ()) for each in _functions(given)]

    @property
    def turns(self) -> list[Any]:
        return self.body["input" if "input" in self.body else "messages"]

    def with_turns(self, num_turns: int) -> dict[str, Any]:
        """The body of an earlier request of the same conversation."""
        return {**self.body, "input" if "input" in self.body else "messages": self.turns[:num_turns]}


def _functions(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Of a tool, in whatever API's form."""
    if given.get("type") == "namespace":
        return [each for own in given["tools"] for each in _functions(own)]
    if given.get("type") == "web_search":
        return []
    function = given.get("function", given)
    return [(function["name"], function.get("parameters", function.get("input_schema")))]


def tool(name: str, properties: dict[str, Any], required: list[str] | None = None, **members: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": f"Runs {name}.", "parameters": parameters, **members},
    }


def call(name: str, arguments: str, **members: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}, **members}


def turns(first: str, name: str, arguments: str, result: str, text: str = "") -> str:
    """System and question, a call, its result, and the next answer's beginning."""
    return (
        f"{first}assistant: {text}\n"
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>\n'
        f"tool: <tool_response>\n{result}\n</tool_response>\nassistant: "
    )


OPENCODE_HEADERS = {"user-agent": "opencode/1.18", "x-session-affinity": "ses_1", "x-session-id": "ses_1"}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

CHATS = (
    ClientRequest(
        client="opencode",
        headers=OPENCODE_HEADERS,
        body={
            "model": "tiny",
            "max_tokens": 4096,
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": '"Print it"'},
                {"role": "assistant", "content": "", "tool_calls": [call("bash", f'{{"command":"{COMMAND}"}}')]},
                {"role": "tool", "tool_call_id": "call_1", "content": "marker-42\n"},
            ],
            "tools": [
                tool(
                    "bash",
                    {"command": {"type": "string"}, "timeout": {"type": "integer", "exclusiveMinimum": 0}},
                    ["command"],
                ),
                tool("todowrite", {"todos": {"type": "array", "items": {"type": "object", "properties": {}}}}),
            ],
            "tool_choice": "auto",
            **STREAM,
        },
        rendered=turns(
            'system: You change code.\nuser: "Print it"\n', "bash", f'{{"command": "{COMMAND}"}}', "marker-42\n"
        ),
        session="x-session-affinity",
    ),
    ClientRequest(
        client="opencode, its title",
        headers=OPENCODE_HEADERS,
        body={
            "model": "tiny",
            "max_tokens": 4096,
            "messages": [
                {"role": "system", "content": "You name things."},
                {"role": "user", "content": "Name this conversation:\n"},
                {"role": "user", "content": '"Print it"'},
            ],
            **STREAM,
        },
        rendered='system: You name things.\nuser: Name this conversation:\n\nuser: "Print it"\nassistant: ',
        session="x-session-affinity",
    ),
    ClientRequest(
        client="pi",
        headers={**OPENAI_SDK, "user-agent": "OpenAI/JS 6"},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": [{"type": "text", "text": "Print it"}]},
                {"role": "assistant", "content": None, "tool_calls": [call("bash", f'{{"command":"{COMMAND}"}}')]},
                {"role": "tool", "content": "marker-42\n", "tool_call_id": "call_1"},
            ],
            **STREAM,
            "store": False,
            "max_completion_tokens": 4096,
            "tools": [tool("bash", {"command": {"type": "string"}}, strict=False)],
        },
        rendered=turns(
            "system: You change code.\nuser: Print it\n", "bash", f'{{"command": "{COMMAND}"}}', "marker-42\n"
        ),
    ),
    ClientRequest(
        client="cline",
        headers={"user-agent": "ai-sdk/openai-compatible/3"},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": "Print it"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [call("run_commands", f'{{"commands":["{COMMAND}"]}}')],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": '[{"result":"marker-42\\n","success":true}]'},
            ],
            "tools": [
                tool(
                    "run_commands",
                    {"commands": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}},
                ),
                tool(
                    "ask",
                    {"options": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}},
                    [],
                ),
            ],
            "tool_choice": "auto",
            **STREAM,
        },
        rendered=turns(
            "system: You change code.\nuser: Print it\n",
            "run_commands",
            f'{{"commands": ["{COMMAND}"]}}',
            '[{"result":"marker-42\\n","success":true}]',
        ),
    ),
    ClientRequest(
        client="qwen-code",
        headers={**OPENAI_SDK, "user-agent": "QwenCode/0.15 (linux; x64)"},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": [{"type": "text", "text": "Where we are."}]},
                {"role": "assistant", "content": "Understood."},
                {"role": "user", "content": [{"type": "text", "text": "Print it"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [call("run_shell_command", f'{{"command":"{COMMAND}"}}')],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Output: marker-42"}]},
            ],
            **STREAM,
            "tools": [
                tool(
                    "run_shell_command",
                    {"command": {"type": "string"}, "is_background": {"type": "boolean"}},
                    ["command"],
                )
            ],
            "max_tokens": 8000,
        },
        rendered=turns(
            "system: You change code.\nuser: Where we are.\nassistant: Understood.\nuser: Print it\n",
            "run_shell_command",
            f'{{"command": "{COMMAND}"}}',
            "Output: marker-42",
        ),
    ),
    ClientRequest(
        client="continue",
        headers={**OPENAI_SDK, "user-agent": "ls/JS 5", "authorization": "Bearer none"},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": "Print it"},
                {"role": "assistant", "content": "", "tool_calls": [call("Bash", f'{{"command":"{COMMAND}"}}')]},
                {"role": "tool", "content": "marker-42\n", "tool_call_id": "call_1"},
            ],
            "stream": True,
            "tools": [tool("Bash", {"command": {"type": "string"}}), tool("Status", {})],
            "stream_options": {"include_usage": True},
        },
        rendered=turns(
            "system: You change code.\nuser: Print it\n", "Bash", f'{{"command": "{COMMAND}"}}', "marker-42\n"
        ),
    ),
    ClientRequest(
        client="mistral-vibe",
        headers={"user-agent": "python-httpx/0.28", "x-affinity": SESSION},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": "Print it"},
                {"role": "assistant", "tool_calls": [call("bash", f'{{"command": "{COMMAND}"}}', index=0)]},
                {"role": "tool", "content": '{"result":"marker-42"}', "name": "bash", "tool_call_id": "call_1"},
            ],
            "temperature": 0.2,
            "tools": [tool("bash", {"command": {"type": "string"}}, ["command"])],
            **STREAM,
        },
        rendered=turns(
            "system: You change code.\nuser: Print it\n",
            "bash",
            f'{{"command": "{COMMAND}"}}',
            '{"result":"marker-42"}',
        ),
        session="x-affinity",
    ),
    ClientRequest(
        client="mini-swe-agent",
        headers={"user-agent": "OpenAI/Python 3", "x-stainless-lang": "python", "x-stainless-raw-response": "true"},
        body={
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "You change code."},
                {"role": "user", "content": "Print it"},
                {"role": "assistant", "tool_calls": [call("bash", f'{{"command": "{COMMAND}"}}')], "annotations": []},
                {"content": '{\n  "output": "marker-42\\n"\n}', "tool_call_id": "call_1", "role": "tool"},
                {"role": "user", "content": "No tool call found."},
                {"role": "user", "content": "No tool call found."},
            ],
            "tools": [tool("bash", {"command": {"type": "string"}})],
        },
        rendered=turns(
            "system: You change code.\nuser: Print it\n",
            "bash",
            f'{{"command": "{COMMAND}"}}',
            '{\n  "output": "marker-42\\n"\n}',
        ).removesuffix("assistant: ")
        + "user: No tool call found.\nuser: No tool call found.\nassistant: ",
    ),
    ClientRequest(
        client="aider",
        headers={"user-agent": "OpenAI/Python 2", "x-stainless-lang": "python", "x-stainless-read-timeout": "600.0"},
        body={
            "messages": [
                {"role": "system", "content": "You write files."},
                {"role": "user", "content": "An example."},
                {"role": "assistant", "content": "Ok."},
                {"role": "user", "content": "Print it\n\nReply in English.\n"},
            ],
            "model": "tiny",
            "stream": True,
            "temperature": 0,
        },
        rendered="system: You write files.\nuser: An example.\nassistant: Ok.\n"
        "user: Print it\n\nReply in English.\n\nassistant: ",
    ),
)


# ---- the Responses API -----------------------------------------------------------------------------------------------


def item(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{SESSION}", "role": role, "content": content}


def flat_tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    function = tool(name, properties)["function"]
    return {"type": "function", **function, "strict": False}


RESPONSES = ClientRequest(
    client="codex",
    path="/v1/responses",
    headers={
        "session-id": SESSION,
        "thread-id": SESSION,
        "x-client-request-id": SESSION,
        "x-codex-window-id": f"{SESSION}:0",
        "x-codex-turn-metadata": '{"sandbox":"none"}',
        "originator": "codex_exec",
    },
    body={
        "model": "tiny",
        "stream": True,
        "input": [
            item("developer", "You change code."),
            item("developer", "Skills.", "Permissions."),
            item("user", "<cwd>/home</cwd>"),
            item("user", "Print it"),
            {
                "type": "function_call",
                "status": "completed",
                "id": "fc_1",
                "name": "exec_command",
                "arguments": f'{{"cmd": "{COMMAND}"}}',
                "call_id": "call_1",
            },
            {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "marker-42\n"},
        ],
        "tools": [
            flat_tool("exec_command", {"cmd": {"type": "string"}}),
            {"type": "namespace", "name": "agents", "description": "Of agents.", "tools": [flat_tool("close", {})]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {"session_id": SESSION, "thread_id": SESSION},
    },
    rendered=turns(
        "developer: You change code.\ndeveloper: Skills.\nPermissions.\nuser: <cwd>/home</cwd>\nuser: Print it\n",
        "exec_command",
        f'{{"cmd": "{COMMAND}"}}',
        "marker-42\n",
    ),
    session="body.session_id",
)

# ---- the Messages API ------------------------------------------------------------------------------------------------


def block(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **members}


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}

MESSAGES = ClientRequest(
    client="claude-code",
    path="/v1/messages?beta=true",
    headers={
        "x-claude-code-session-id": SESSION,
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
        "anthropic-dangerous-direct-browser-access": "true",
        "authorization": "Bearer none",
        "x-app": "cli",
    },
    body={
        "model": "tiny",
        "messages": [
            {"role": "user", "content": [block("Where we are."), block("Print it")]},
            {"role": "system", "content": "A word between."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": COMMAND}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "tool_use_id": "toolu_1",
                        "type": "tool_result",
                        "content": "marker-42",
                        "is_error": False,
                        **EPHEMERAL,
                    }
                ],
            },
        ],
        "system": [
            block("x-anthropic-billing-header: cc_version=2; cch=01234;"),
            block("You change code.", **EPHEMERAL),
            block("More of it.", **EPHEMERAL),
        ],
        "tools": [
            {
                "name": "Bash",
                "description": "Runs it.",
                "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "properties": {"command": {"type": "string"}},
                    "required": ["command"],
                    "additionalProperties": False,
                },
            }
        ],
        "metadata": {"user_id": f'{{"device_id":"0","account_uuid":"","session_id":"{SESSION}"}}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    },
    rendered=turns(
        "system: You change code.\nMore of it.\nuser: Where we are.\nPrint it\nsystem: A word between.\n",
        "Bash",
        f'{{"command": "{COMMAND}"}}',
        "marker-42",
    ),
    session="x-claude-code-session-id",
)

REQUESTS = (*CHATS, RESPONSES, MESSAGES)

# ---- completions -----------------------------------------------------------------------------------------------------

PLAIN = {
    "model": "tiny",
    "prompt": "The capital is",
    "max_tokens": 10,
    "temperature": 0,
    "stop": ["\n", "."],
    "seed": 1234,
}
SCORED = {
    "model": "tiny",
    "prompt": [[1, 2, 3]],
    "temperature": 0,
    "max_tokens": 1,
    "logprobs": 1,
    "seed": 1,
    "echo": True,
}
