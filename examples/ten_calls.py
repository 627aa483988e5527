"""Ten questions that each want one call of one of four tools: how many does a served model answer with the right one?

    python examples/ten_calls.py http://127.0.0.1:8000 [auto|required]

Prints each call and the number of right ones. Needs nothing but Python.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("get_weather", "Get the current weather of a city", {"city": TEXT, "unit": UNIT}, ["city"]),
    tool("get_time", "Get the current time in a city", {"city": TEXT}, ["city"]),
    tool("read_file", "Read a file from disk", {"path": TEXT}, ["path"]),
    tool("add", "Add two numbers", {"a": NUMBER, "b": NUMBER}, ["a", "b"]),
]
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ("What is the weather in Tokyo in celsius?", "get_weather", {"city": "Tokyo"}),
    ("What time is it in London?", "get_time", {"city": "London"}),
    ("Read the file /etc/hosts.", "read_file", {"path": "/etc/hosts"}),
    ("Add 17 and 25.", "add", {"a": 17, "b": 25}),
    ("How warm is it in Berlin now?", "get_weather", {"city": "Berlin"}),
    ("Show me the contents of README.md", "read_file", {"path": "README.md"}),
    ("What is the time in New York?", "get_time", {"city": "New York"}),
    ("Use the add tool for 3.5 and 4.", "add", {"a": 3.5, "b": 4}),
    ("Tell me the weather in Oslo, in fahrenheit.", "get_weather", {"city": "Oslo", "unit": "fahrenheit"}),
]


def ask(url: str, question: str, choice: str) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question}], "tools": TOOLS, "tool_choice": choice}
    data = json.dumps(body | {"max_tokens": 100, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def is_right(message: dict[str, Any], name: str, arguments: dict[str, Any]) -> bool:
    calls = message.get("tool_calls") or []
    if [call["function"]["name"] for call in calls] != [name]:
        return False
    given = json.loads(calls[0]["function"]["arguments"])
    return all(given.get(key) == value for key, value in arguments.items())


def main(url: str, choice: str = "auto") -> None:
    num_right = 0
    for question, name, arguments in QUESTIONS:
        message = ask(url.rstrip("/"), question, choice)
        right = is_right(message, name, arguments)
        num_right += right
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
        print("right" if right else "WRONG", question, calls or repr(message.get("content")))
    print(f"{num_right} of {len(QUESTIONS)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
