"""What a scripted server says where a request leaves it nothing to choose: values of schemas, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from relevo.check.schema_fit import fits

LABELS = ("AAA-00", "AA-000")  # of the patterns that checks ask for


def value_of(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """One value of the schema; None where it has none that is known here."""
    root = schema if root is None else root
    if "$ref" in schema:
        return value_of(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return value_of(schema["anyOf"][0], root)
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: value_of(one, root) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        among = schema["items"].get("enum")
        num = schema.get("minItems", 1)
        return among[:num] if schema.get("uniqueItems") else [value_of(schema["items"], root) for _ in range(num)]
    if kind == "string":
        return next((label for label in LABELS if "pattern" not in schema or fits(label, schema)), "a")
    return {"boolean": True, "integer": schema.get("minimum", 1), "null": None}.get(kind)


def is_schema(schema: Mapping[str, Any]) -> bool:
    kinds = {"object", "array", "string", "boolean", "integer", "number", "null"}
    kind = schema.get("type", "object")
    return set([kind] if isinstance(kind, str) else kind) <= kinds and all(
        is_schema(one) for one in schema.get("properties", {}).values() if isinstance(one, dict)
    )


def held_text(body: Mapping[str, Any]) -> str | None:
    """The content that a request asks for; None: any."""
    outputs = body.get("structured_outputs") or {}
    if "choice" in outputs:
        return str(outputs["choice"][0])
    if "regex" in outputs:
        return LABELS[1]
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_object":
        return '{"answer": "yes"}'
    if wanted.get("type") == "json_schema":
        return json.dumps(value_of(wanted["json_schema"]["schema"]), ensure_ascii=False)
    return None


def forced_calls(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and arguments of each call that tool_choice demands: two, where that is allowed."""
    choice = body.get("tool_choice")
    tools = [tool["function"] for tool in body.get("tools") or []]
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    elif choice == "required":
        tools = (2 * tools)[:1] if body.get("parallel_tool_calls") is False else (2 * tools)[:2]
    else:
        return []
    return [(tool["name"], json.dumps(value_of(tool["parameters"]), ensure_ascii=False)) for tool in tools]


def why_no_call(body: Mapping[str, Any]) -> str | None:
    """What is wrong with what a request says of tools and forms."""
    names = [tool["function"]["name"] for tool in body.get("tools") or []]
    choice = body.get("tool_choice")
    if choice == "required" and not names:
        return "nothing to call"
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        return "tool_choice names no tool"
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema" and not is_schema(wanted["json_schema"]["schema"]):
        return "no schema"
    return None
