"""Which models a server is to have: the one named on the command line, or those of a file, one section for each.

A section holds settings of one model under their names in `relevo.settings`; what it does not say is as on the command
line, in the environment, or the default. `price` may be written into it. Reads the file, nothing of the models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from relevo.build.documents import read_document
from relevo.build.setting_scopes import OF_ONE_MODEL, OF_THE_SERVER
from relevo.core.errors import SettingsError
from relevo.settings import Settings

_SECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")  # it becomes part of worker ids and of socket paths
_PRICE = "price"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    """`settings` are those of the model; `cores` of a section are its own."""

    settings: Settings
    section: str = ""  # empty: named on the command line
    price: Mapping[str, Any] | None = None


def asked_models(settings: Settings) -> list[AskedModel]:
    """At least one. Raises SettingsError."""
    if settings.models is None:
        return [AskedModel(settings=settings)]
    for name in sorted(OF_ONE_MODEL & settings.model_fields_set):
        flag = f"MODEL {settings.model}" if name == "model" else f"--{name.replace('_', '-')}"
        raise SettingsError(
            f"{flag} is of one model, and --models {settings.models} names the models; write it into its section there"
        )
    document = read_document(settings.models, "--models")
    if not isinstance(document, Mapping) or not document:
        raise SettingsError(f"--models {settings.models} has no section; write one per model, such as [small]")
    return [_asked_model(settings, str(name), section) for name, section in document.items()]


def _asked_model(settings: Settings, name: str, section: Any) -> AskedModel:
    where = f"--models {settings.models}: [{name}]"
    if not isinstance(section, Mapping):
        raise SettingsError(f"--models {settings.models}: {name!r} is no section; put settings below [NAME]")
    if not _SECTION.fullmatch(name):
        raise SettingsError(f"{where} must be named with at most 32 letters, digits, dots, dashes and underscores")
    own = {key.replace("-", "_"): value for key, value in section.items()}
    price = own.pop(_PRICE, None)
    if price is not None and not isinstance(price, Mapping):
        raise SettingsError(f"{where} price must be a table, such as {{ input_cost_per_token = 1.5e-07, ... }}")
    _check_keys(own, where)
    given = {field: getattr(settings, field) for field in settings.model_fields_set - OF_ONE_MODEL - {"cores"}}
    given |= {"models": settings.models, "cores": (), "served_model_name": ()}
    given |= {"revision": None, "chat_template": None, "script": None}
    return AskedModel(settings=_settings(given, own, where), section=name, price=price)


def _check_keys(own: Mapping[str, Any], where: str) -> None:
    if "model" not in own:
        raise SettingsError(f"{where} does not say which model; add model = a file, a folder or a hub id")
    for key in own:
        if key in OF_THE_SERVER:
            raise SettingsError(f"{where} has {key}, which is of the whole server; use --{key.replace('_', '-')}")
        if key not in Settings.model_fields:
            raise SettingsError(f"{where} has {key}, which is no setting of a model; see docs/settings.md for those")


def _settings(given: Mapping[str, Any], own: Mapping[str, Any], where: str) -> Settings:
    texts = {key: [str(item) for item in value] if isinstance(value, list) else value for key, value in own.items()}
    try:
        return Settings(**{**given, **texts})
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"])
        raise SettingsError(
            f"{where} {first['loc'][0]} = {first['input']}: {message[0].lower()}{message[1:]}"
        ) from error
