"""The OpenAPI document as one page of HTML: no script, nothing from elsewhere, light or dark as the reader has it.

Its one style sheet is named by its hash in the page's own Content-Security-Policy, which allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import orjson

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid #8886; }
details { border: 1px solid #8886; border-radius: .4rem; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; }
summary code { font-weight: bold; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)


def page(document: Mapping[str, Any]) -> bytes:
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    operations = [
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    body = [
        f"<h1>{escape(title)}</h1><p>{escape(info['description'])}</p>",
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>',
        *("<h2>Paths</h2>", *operations, "<h2>Bodies</h2>", *schemas),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><meta name="viewport" content="width=device-width">'
    return f'<!doctype html><html lang="en">{head}<style>{_STYLE}</style>{"".join(body)}</html>'.encode()


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    key = "needs a key where keys are configured" if operation["security"] else "needs no key"
    summary = escape(operation.get("summary", ""))
    parts = [f"<summary><code>{method.upper()} {escape(path)}</code> {summary}</summary><p>It {key}.</p>"]
    if operation["parameters"]:
        parts.append(_table(("parameter", "in"), ((each["name"], each["in"]) for each in operation["parameters"])))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        parts.append(f"<p>Body: {_type_of(content['schema'])}</p>")
    rows = (
        (status, answer["description"], ", ".join(answer["content"]))
        for status, answer in operation["responses"].items()
    )
    parts.append(_table(("status", "meaning", "body"), rows))
    return f"<details>{''.join(parts)}</details>"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type_of(member)}</td>"
        f"<td>{_default_of(field, member, required)}</td></tr>"
        for field, member in schema.get("properties", {}).items()
    )
    head = "<tr><th>member</th><th>type</th><th>default</th></tr>"
    anchor = escape(name, quote=True)
    return f'<details id="{anchor}"><summary><code>{escape(name)}</code></summary><table>{head}{rows}</table></details>'


def _default_of(field: str, member: Mapping[str, Any], required: Iterable[str]) -> str:
    if field in required:
        return "required"
    return f"<code>{escape(orjson.dumps(member['default']).decode())}</code>" if "default" in member else ""


def _type_of(member: Mapping[str, Any]) -> str:
    """As HTML."""
    if "$ref" in member:
        name = escape(member["$ref"].rpartition("/")[2], quote=True)
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "anyOf" in member:
        return " or ".join(map(_type_of, member["anyOf"]))
    kind = member.get("type", "anything")
    kind = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if "enum" in member:
        kind = " or ".join(orjson.dumps(value).decode() for value in member["enum"])
    if kind == "array":
        return f"list of {_type_of(member.get('items', {}))}"
    bounds = {
        "minimum": "at least",
        "maximum": "at most",
        "exclusiveMinimum": "above",
        "maxLength": "at most that long:",
    }
    told = [f"{word} {member[name]}" for name, word in bounds.items() if name in member]
    return escape(" ".join([kind, f"({', '.join(told)})"] if told else [kind]))


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
