"""Command-line flags of `relevo serve`, made from the fields of `Settings`: a knob is written down once."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from relevo.core.errors import SettingsError
from relevo.settings import Settings


def with_settings_flags(run: Callable[[Settings], None]) -> Callable[..., None]:
    """A function typer can read: one parameter per setting. What is not given comes from environment and defaults."""

    def command(**values: Any) -> None:
        given = {name: value for name, value in values.items() if value not in (None, [], ())}
        run(make_settings(given))

    parameters = [_parameter(name, field) for name, field in Settings.model_fields.items()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command


def make_settings(given: dict[str, Any]) -> Settings:
    """Raises SettingsError naming the flag, its value and the rule."""
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
        message = str(first["msg"])
        shown = "" if name in ("api_key", "admin_key") else f" {first['input']}"  # a secret is not shown
        raise SettingsError(f"{flag}{shown}: {message[0].lower()}{message[1:]}") from error


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    shown = field.default if field.default not in (None, (), {}) else None
    help_text = field.description or ""
    if shown is not None and name != "model":
        help_text += f" [default: {shown}]"
    is_read = any(isinstance(each, BeforeValidator) for each in field.metadata)
    annotation = _flag_type(field.annotation)
    annotation = str | None if is_read and annotation == (float | None) else annotation
    default: Any
    if name == "model":
        default = typer.Argument(None, help=f"{help_text} [default: {shown}]", show_default=False)
    elif name == "engine_args":
        default = typer.Argument(None, help=help_text, show_default=False, metavar="[-- FLAGS]")
    elif annotation == (bool | None):
        flag = name.replace("_", "-")
        default = typer.Option(None, f"--{flag}/--no-{flag}", help=help_text, show_default=False)
    else:
        default = typer.Option(None, f"--{name.replace('_', '-')}", help=help_text, show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag_type(annotation: Any) -> Any:
    """Numbers and switches keep their type; the rest is text that Settings parses. Repeatable for lists."""
    options = [a for a in get_args(annotation) if a is not types.NoneType] if _is_union(annotation) else [annotation]
    kind = options[0]
    if get_origin(kind) is tuple:
        return list[str] | None
    if get_origin(kind) is Literal:
        return str | None
    if kind in (bool, float):
        return kind | None
    return str | None


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (typing.Union, types.UnionType)
