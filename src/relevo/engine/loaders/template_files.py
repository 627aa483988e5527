"""Where the chat templates of a model are written, and which place wins.

Returns the template of plain chats and, by name, the others (`tool_use`). Renders nothing.
Source: the conventions of Hugging Face transformers (`chat_template.jinja`, `additional_chat_templates/`, lists of
named templates), of its processors (`chat_template.json`) and of GGUF (`tokenizer.chat_template.NAME`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relevo.core.errors import ModelFileError
from relevo.engine.loaders.text_files import read_object, read_text

Templates = tuple[str | None, dict[str, str]]

_DEFAULT = "default"
_GGUF = "tokenizer.chat_template"


def folder_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> Templates:
    """Templates in files of their own are all that count; else chat_template.json wins over tokenizer_config.json.

    One place never adds to another: what is left of an earlier saving would meet only the requests with tools.
    Raises ModelFileError if what stands there is no template.
    """
    in_files = _in_files(folder)
    path = folder / "chat_template.json"
    found = in_files or _named(read_object(path).get("chat_template"), path)
    return _split(found or _named(tokenizer_config.get("chat_template"), folder / "tokenizer_config.json"))


def _in_files(folder: Path) -> dict[str, str]:
    found = {}
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    for name, path in (files | {_DEFAULT: folder / "chat_template.jinja"}).items():
        if (text := read_text(path)) is not None:
            found[name] = text
    return found


def gguf_templates(fields: Mapping[str, Any]) -> Templates:
    found = {key.removeprefix(f"{_GGUF}."): text for key, text in fields.items() if key.startswith(f"{_GGUF}.")}
    found |= {_DEFAULT: fields[_GGUF]} if _GGUF in fields else {}
    return _split({name: text for name, text in found.items() if isinstance(text, str)})


def _named(stated: Any, path: Path) -> dict[str, str]:
    """A template, a list of named ones, or an object of them."""
    if stated is None:
        return {}
    if isinstance(stated, str):
        return {_DEFAULT: stated}
    if isinstance(stated, list) and all(isinstance(entry, dict) for entry in stated):
        named = [(entry.get("name"), entry.get("template")) for entry in stated]
    else:
        named = list(stated.items()) if isinstance(stated, dict) else [(None, None)]
    if not all(isinstance(part, str) for pair in named for part in pair):
        raise ModelFileError(f"{path}: chat_template is neither a template nor a list of named ones; download it again")
    return dict(named)


def _split(found: dict[str, str]) -> Templates:
    """A model whose only template has another name uses that for everything."""
    if _DEFAULT not in found and len(found) == 1:
        return next(iter(found.values())), {}
    others = {name: text for name, text in found.items() if name != _DEFAULT}
    return found.get(_DEFAULT), others
