"""How engines that are not ours hand KV to each other, as data: what is sent to the one that computes the prompt, what
to the one that decodes, in which order, and what is read from the first one's answer.

Pure. Knows no HTTP, no clock but the one it is told, and no request. Everything in these fields is drawn here or said
by an engine: nothing of a client's request ever gets into them. Sources: vLLM 0.32, its NIXL and Mooncake connectors;
SGLang 0.5.23, its mini load balancer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

NS = 1_000_000_000


class Slot(StrEnum):
    """What is filled in for each handoff."""

    ANSWER = "answer"  # the fields of the prefill engine's own answer, whole
    TRANSFER_ID = "transfer_id"
    ROOM = "room"
    PEER_ENGINE_ID = "peer_engine_id"
    PEER_ADDRESS = "peer_address"  # scheme://host:port
    PEER_HOST = "peer_host"  # IPv6 in brackets
    PEER_PORT = "peer_port"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffDialect:
    """`to_prefill` and `to_decode` are merged into the two requests, their slots filled."""

    name: str
    engine: str
    to_prefill: Mapping[str, Any]
    to_decode: Mapping[str, Any]
    is_concurrent: bool = False  # both are asked at once; the prefill engine's answer tells only whether it failed
    requires_peer_binding: bool = False  # the decode engine must be told where the prefill engine listens
    decodes_alone: bool = True  # the decode engine can compute a prompt itself
    answers_in: str = ""  # the field of the prefill engine's answer that is passed on
    required: tuple[str, ...] = ()  # in there
    cached_tokens_in: str = ""  # in there: how many tokens of the prompt the prefill engine had cached
    lease_s: float | None = (
        None  # KV is kept at least so long after the answer unless it was told otherwise; None: ever
    )


_ANSWERED = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
_NOTHING_YET = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

NIXL_PULL = HandoffDialect(
    name="nixl-pull",
    engine="vllm",
    to_prefill={"kv_transfer_params": _NOTHING_YET},
    to_decode={"kv_transfer_params": Slot.ANSWER},
    answers_in="kv_transfer_params",
    required=_ANSWERED,
    cached_tokens_in="remote_prefill_cached_tokens",
    lease_s=10.0,
)
NIXL_PUSH = replace(NIXL_PULL, name="nixl-push")  # the direction is the engines' own affair
MOONCAKE = HandoffDialect(
    name="mooncake",
    engine="vllm",
    to_prefill={"kv_transfer_params": {"do_remote_decode": True, "transfer_id": Slot.TRANSFER_ID}},
    to_decode={
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "remote_engine_id": Slot.PEER_ENGINE_ID,
            "remote_bootstrap_addr": Slot.PEER_ADDRESS,
            "transfer_id": Slot.TRANSFER_ID,
        }
    },
    is_concurrent=True,
    requires_peer_binding=True,
)
_SAME_ROOM = {"bootstrap_host": Slot.PEER_HOST, "bootstrap_port": Slot.PEER_PORT, "bootstrap_room": Slot.ROOM}
SGLANG_BOOTSTRAP = HandoffDialect(
    name="sglang-bootstrap",
    engine="sglang",
    to_prefill=_SAME_ROOM,
    to_decode=_SAME_ROOM,
    is_concurrent=True,
    requires_peer_binding=True,
    decodes_alone=False,
)
DIALECTS = {each.name: each for each in (NIXL_PULL, NIXL_PUSH, MOONCAKE, SGLANG_BOOTSTRAP)}
FIRST_OF_ENGINE = {"vllm": NIXL_PULL, "sglang": SGLANG_BOOTSTRAP}


def _names(fields: Mapping[str, Any]) -> set[str]:
    inner = (_names(value) for value in fields.values() if isinstance(value, Mapping))
    return set(fields).union(*inner)


TRANSFER_FIELDS = frozenset(
    name
    for dialect in DIALECTS.values()
    for name in (*_names(dialect.to_prefill), *_names(dialect.to_decode), *dialect.required)
)  # of any dialect: no client may set one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What is known of a prefill engine before it is asked."""

    engine_id: str = ""
    address: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_known(self) -> bool:
        return bool(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """One of them. `number` is drawn at random and not used again while it is open."""

    dialect: HandoffDialect
    number: int  # 63 bits
    binding: Binding = Binding()

    @property
    def name(self) -> str:
        return f"relevo-{self.number:016x}"

    def for_prefill(self) -> dict[str, Any]:
        return self._filled(self.dialect.to_prefill, {})

    def for_decode(self, answered: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`answered`: see `answer_of`; none where both are asked at once."""
        return self._filled(self.dialect.to_decode, answered or {})

    def _filled(self, fields: Mapping[str, Any], answered: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(value, answered) for name, value in fields.items()}

    def _value(self, value: Any, answered: Mapping[str, Any]) -> Any:
        if isinstance(value, Mapping):
            return self._filled(value, answered)
        if not isinstance(value, Slot):
            return value
        known: dict[Slot, Any] = {
            Slot.ANSWER: dict(answered),
            Slot.TRANSFER_ID: self.name,
            Slot.ROOM: self.number,
            Slot.PEER_ENGINE_ID: self.binding.engine_id,
            Slot.PEER_ADDRESS: self.binding.address,
            Slot.PEER_HOST: self.binding.host,
            Slot.PEER_PORT: self.binding.port,
        }
        return known[value]


def answer_of(dialect: HandoffDialect, answer: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields that the prefill engine's answer brings for the decode engine, and why there are none."""
    if not dialect.answers_in:
        return {}, ""
    fields = answer.get(dialect.answers_in)
    if not isinstance(fields, Mapping):
        return {}, f"it answers without {dialect.answers_in}: was it started with a KV connector?"
    missing = [name for name in dialect.required if fields.get(name) in (None, [], "")]
    if missing:
        return {}, f"its {dialect.answers_in} say no {', '.join(missing)}: it keeps no KV for others"
    if fields.get("do_remote_prefill") is not True:
        return {}, f"its {dialect.answers_in} do not ask for a remote prefill: it is no producer of KV"
    return dict(fields), ""


def cached_tokens_of(dialect: HandoffDialect, fields: Mapping[str, Any]) -> int | None:
    """None: only the decode engine knows."""
    told = fields.get(dialect.cached_tokens_in) if dialect.cached_tokens_in else None
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClock:
    """Until when a decode engine may be asked. All times are ours: an engine's clock is never compared with them."""

    lease_s: float | None  # None: the KV is kept until it is fetched

    @property
    def margin_s(self) -> float:
        """For the way to the decode engine, whose first sign of life to the prefill engine extends the lease."""
        return 0.0 if self.lease_s is None else max(1.0, self.lease_s / 4)

    def use_by_ns(self, answered_at_ns: int) -> int | None:
        """`answered_at_ns`: a moment at which the answer was not there yet, as late as one is known."""
        return None if self.lease_s is None else answered_at_ns + round((self.lease_s - self.margin_s) * NS)


def packed(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def unpacked(fields: bytes) -> dict[str, Any]:
    """Of what `packed` made."""
    told = json.loads(fields)
    assert isinstance(told, dict)
    return told
