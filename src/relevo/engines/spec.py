"""How an engine is named by an operator: `URL,role=prefill,engine=vllm,...`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from relevo.core.errors import SettingsError
from relevo.core.urls import authority, normalise_url, with_plain_zone
from relevo.policy.handoff.dialects import DIALECTS, FIRST_OF_ENGINE, HandoffDialect

ROLES = ("prefill", "decode", "unified")
BOOTSTRAP_PORT = 8998  # of SGLang's and Mooncake's servers, unless told otherwise
_KEYS = ("role", "engine", "name", "dialect", "events", "replay", "bootstrap", "lease_s", "api_key_env", "model")
_EXAMPLE = "write for example http://10.0.0.2:8000,role=prefill,engine=vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine process, as it is reached."""

    worker_id: str
    url: str
    role: str  # of ROLES
    engine: str  # of FIRST_OF_ENGINE
    dialect: str  # of DIALECTS
    model: str = ""  # name to ask for; empty: the first that it serves
    events: str = ""  # ZMQ address of its KV events, such as tcp://10.0.0.2:5557; empty: none
    replay: str = ""  # ZMQ address that says missed ones again
    bootstrap: str = ""  # host:port of its bootstrap server, for dialects that bind the peer first
    lease_s: float = 0.0  # of its KV after a prefill; 0: the dialect's
    api_key_env: str = ""  # name of the environment variable that holds its key
    api_key: str = field(default="", repr=False)  # of an engine that Relevo started
    served_name: str = ""  # what clients call the model, for errors
    block_size: int = 16  # that Relevo counts in
    vocab_size: int = 0
    max_model_len: int = 0

    @property
    def handoff(self) -> HandoffDialect:
        return DIALECTS[self.dialect]

    @property
    def address(self) -> str:
        return engine_address(self.worker_id)


def engine_address(worker_id: str) -> str:
    """As gateways know the worker by, wherever it is."""
    return f"engine:{worker_id}"


def packed_spec(spec: EngineSpec) -> str:
    """For gateways on other boxes. Its key goes with it: they look for none in an environment, as what another box
    names there is none of its affair. Raises SettingsError."""
    if spec.api_key_env:
        spec = replace(spec, api_key=key_of(spec), api_key_env="")
    return msgspec.json.encode(spec).decode()


def unpacked_spec(text: str, worker_id: str) -> EngineSpec:
    """Of what another box packed; `worker_id`: the worker that it tells of. Raises SettingsError."""
    try:
        spec = msgspec.json.decode(text, type=EngineSpec)
    except msgspec.MsgspecError as error:
        raise SettingsError(f"another box names an engine in words that are not read here: {error}") from None
    _check_words(spec.url, spec.role, spec.engine, spec.dialect)
    return replace(spec, worker_id=worker_id, api_key_env="", url=normalise_url(spec.url, worker_id))


def key_of(spec: EngineSpec) -> str:
    """Empty: it needs none. Raises SettingsError."""
    if spec.api_key_env and spec.api_key_env not in os.environ:
        raise SettingsError(f"the environment has no {spec.api_key_env}, which api_key_env names; set it")
    return spec.api_key or os.environ.get(spec.api_key_env, "")


def parse_engines(texts: tuple[str, ...], *, is_part: bool = False) -> tuple[EngineSpec, ...]:
    """Of all `--worker`. `is_part`: other boxes have the rest. Raises SettingsError."""
    specs = [_parse(text, index) for index, text in enumerate(texts)]
    seen: dict[str, str] = {}
    for spec in specs:
        for what, value in (("name", spec.worker_id), ("URL", spec.url)):
            if value in seen:
                raise SettingsError(f"--worker {spec.url} has the {what} of another worker; give each its own")
            seen[value] = what
    check_roles(specs, is_part=is_part)
    return tuple(specs)


def check_roles(specs: list[EngineSpec], *, is_part: bool = False) -> None:
    """Raises SettingsError for workers that cannot serve together."""
    engines = {spec.engine for spec in specs}
    if len(engines) > 1:
        raise SettingsError(
            f"--worker names engines {' and '.join(sorted(engines))}, which cannot hand KV to each other; serve each "
            "with a Relevo of its own"
        )
    dialects = {spec.dialect for spec in specs}
    if len(dialects) > 1:
        raise SettingsError(f"--worker names dialects {' and '.join(sorted(dialects))}; all must hand over alike")
    roles = {spec.role for spec in specs}
    alone = next(iter(roles)) if len(roles) == 1 and not is_part else ""
    if alone == "prefill" or (alone == "decode" and not specs[0].handoff.decodes_alone):
        other = "decode" if alone == "prefill" else "prefill"
        raise SettingsError(
            f"every --worker has role={alone}, so none of them {_DOES[other]}; add one with role={other}"
        )
    if "unified" in roles and len(roles) > 1:
        raise SettingsError(
            "role=unified takes part in no handoff and would idle beside role=prefill and role=decode; give all "
            "workers one of the two, or make all unified"
        )
    if "prefill" in roles and "decode" not in roles and not is_part:
        raise SettingsError("there is no --worker with role=decode; add one, or make all role=unified")


_DOES = {"prefill": "computes prompts", "decode": "decodes"}


def _parse(text: str, index: int) -> EngineSpec:
    url, *pairs = (part.strip() for part in text.split(","))
    told: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in _KEYS:
            raise SettingsError(f"--worker {url}: {pair!r} is none of {', '.join(f'{k}=' for k in _KEYS)}; {_EXAMPLE}")
        if key in told:
            raise SettingsError(f"--worker {url}: {key}= is there twice; keep one")
        told[key] = value.strip()
    url = with_plain_zone(normalise_url(url, "--worker"))
    role, engine = told.pop("role", ""), told.pop("engine", "")
    dialect = told.pop("dialect", "")
    _check_words(url, role, engine, dialect)
    dialect = dialect or FIRST_OF_ENGINE[engine].name
    lease_s = _seconds(told.pop("lease_s", "0"), url)
    spec = EngineSpec(
        worker_id=told.pop("name", "") or f"{role}-{index}", url=url, role=role, engine=engine, dialect=dialect
    )
    texts: dict[str, Any] = told
    spec = replace(spec, lease_s=lease_s, **texts)
    if spec.handoff.requires_peer_binding and role == "prefill":
        host, port = peer_of(spec)
        spec = replace(spec, bootstrap=authority(host, port))
    return spec


def _check_words(url: str, role: str, engine: str, dialect: str) -> None:
    """`dialect` empty: the engine's first. Raises SettingsError."""
    if role not in ROLES:
        raise SettingsError(f"--worker {url}: role={role} must be one of {', '.join(ROLES)}; {_EXAMPLE}")
    if engine not in FIRST_OF_ENGINE:
        raise SettingsError(f"--worker {url}: engine={engine} must be one of {', '.join(FIRST_OF_ENGINE)}; {_EXAMPLE}")
    if dialect and (dialect not in DIALECTS or DIALECTS[dialect].engine != engine):
        known = ", ".join(name for name, each in DIALECTS.items() if each.engine == engine)
        raise SettingsError(f"--worker {url}: dialect={dialect} is none of {engine}'s: {known}")


def peer_of(spec: EngineSpec) -> tuple[str, int]:
    """Host (without brackets) and port of its bootstrap server. Raises SettingsError."""
    try:
        parts = urlsplit(f"//{spec.bootstrap}") if spec.bootstrap else urlsplit(spec.url)
        host, port = parts.hostname or "", (parts.port if spec.bootstrap else None) or BOOTSTRAP_PORT
    except ValueError as error:
        raise SettingsError(f"--worker {spec.url}: bootstrap={spec.bootstrap}: {error}; write host:port") from None
    if not host:
        raise SettingsError(f"--worker {spec.url}: bootstrap={spec.bootstrap} is no host:port")
    return host, port


def _seconds(text: str, url: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (value == 0.0 or 3.0 <= value <= 3600.0):
        raise SettingsError(
            f"--worker {url}: lease_s={text} must be seconds from 3 to 3600, those of the engine's lease"
        )
    return value


assert {each.name for each in fields(EngineSpec)} >= set(_KEYS) - {"name"}
