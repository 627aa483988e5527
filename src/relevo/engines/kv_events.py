"""What an engine has cached, from its KV events over ZMQ: its blocks become ours by their tokens, so that one index
knows all workers.

An event names blocks by hashes of the engine's own; with the tokens and the parent that come with it, the block gets
the hash that `policy.worker.prefix_cache` gives the same content. A gap is asked for again; a sequence that begins anew
is another process. Formats: vLLM 0.32 and SGLang 0.5.23, msgpack maps with `type` (older ones are arrays: that is told
in the log, once). Needs pyzmq.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from relevo.core.errors import SettingsError
from relevo.core.ids import BlockHash
from relevo.engines.spec import EngineSpec
from relevo.policy.worker.prefix_cache import ROOT_HASH, block_hash
from relevo.wire import messages as wire

log = logging.getLogger("relevo.gateway")

REPLAY_S = 2.0  # arbitrary
Tell = Callable[[wire.CacheSnapshot | wire.CacheEvents], None]


@dataclass(slots=True)
class CacheBook:
    """The blocks of one engine, in its words and in ours. Pure."""

    block_size: int
    ours: dict[Any, BlockHash] = field(default_factory=dict)  # by the engine's hash
    salts: dict[Any, bytes] = field(default_factory=dict)
    held: dict[BlockHash, int] = field(default_factory=dict)  # under how many of its names
    num_unreadable: int = 0

    def take(self, events: Iterable[Any]) -> tuple[list[BlockHash], list[BlockHash]]:
        """What is found now and was not, and what is not any more."""
        stored: dict[BlockHash, None] = {}
        evicted: dict[BlockHash, None] = {}
        for event in events:
            kind = event.get("type") if isinstance(event, dict) else None
            if kind == "BlockStored":
                for block in self._stored(event):
                    stored[block] = None
                    evicted.pop(block, None)
            elif kind == "BlockRemoved":
                for block in self._removed(event):
                    evicted[block] = None
                    stored.pop(block, None)
            elif kind == "AllBlocksCleared":
                evicted.update(dict.fromkeys(self.held))
                stored.clear()
                self.clear()
            else:
                self.num_unreadable += 1
        return list(stored), list(evicted)

    def clear(self) -> None:
        self.ours.clear()
        self.salts.clear()
        self.held.clear()

    def _stored(self, event: dict[str, Any]) -> list[BlockHash]:
        names, tokens = event.get("block_hashes") or [], event.get("token_ids") or []
        size = event.get("block_size") or self.block_size
        if (
            size != self.block_size
            or event.get("lora_id") is not None
            or event.get("medium") not in (None, "GPU", "CPU")
        ):
            return []
        parent = event.get("parent_block_hash")
        if parent is None:
            before, salt = ROOT_HASH, _salt(event.get("extra_keys"))
            if salt is None:
                return []
        elif parent in self.ours:
            before, salt = self.ours[parent], self.salts[parent]
        else:
            return []  # what it goes on from is not known, so neither is its content
        blocks = []
        for index, name in enumerate(names):
            block_tokens = tokens[index * size : (index + 1) * size]
            if len(block_tokens) < size:
                break
            before = block_hash(before, block_tokens, salt)
            if name not in self.ours:
                self.held[before] = self.held.get(before, 0) + 1
            self.ours[name], self.salts[name] = before, salt
            blocks.append(before)
        return blocks

    def _removed(self, event: dict[str, Any]) -> list[BlockHash]:
        blocks = []
        for name in event.get("block_hashes") or []:
            block = self.ours.pop(name, None)
            self.salts.pop(name, None)
            if block is not None:
                self.held[block] -= 1
                if not self.held[block]:
                    del self.held[block]
                    blocks.append(block)
        return blocks


def _salt(extra_keys: Any) -> bytes | None:
    """Of the first block: none, or one that we gave. None: what makes this block different is not known here."""
    keys = (
        extra_keys[0] if isinstance(extra_keys, Sequence) and extra_keys and not isinstance(extra_keys, str) else None
    )
    if not keys:
        return b""
    for key in keys if isinstance(keys, Sequence) and not isinstance(keys, str) else (keys,):
        text = key[1] if isinstance(key, Sequence) and len(key) == 2 and key[0] == "cache_salt" else key
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                return bytes.fromhex(text)
    return None


class Follower:
    """Listens from its first `follow` on, and says all again at each."""

    def __init__(self, spec: EngineSpec) -> None:
        try:
            import zmq
            import zmq.asyncio
        except ImportError:
            raise SettingsError(
                "events= needs the package pyzmq; install relevo[engines], or leave events= out: then prompts are sent "
                "without knowledge of what engines have cached"
            ) from None
        self._zmq = zmq
        self._context = zmq.asyncio.Context.instance()
        self._spec = spec
        self.book = CacheBook(spec.block_size)
        self._next = -1  # sequence number of the engine's next batch; -1: none was seen
        self._sequence = 0  # ours, of the last batch told
        self._tell: Tell | None = None
        self.on_restart: Callable[[], None] = lambda: None

    def follow(self, tell: Tell) -> None:
        self._tell = tell
        tell(wire.CacheSnapshot(self._sequence, tuple(self.book.held)))

    async def run(self) -> None:
        """Until cancelled."""
        socket = self._context.socket(self._zmq.SUB)
        socket.setsockopt(self._zmq.SUBSCRIBE, b"")
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.IPV6, 1)
        try:
            socket.connect(self._spec.events)
            if self._spec.replay:
                await self._replay(0)
            while True:
                _, sequence, payload = await socket.recv_multipart()
                await self._heard(int.from_bytes(sequence, "big"), payload)
        finally:
            socket.close()

    async def _heard(self, number: int, payload: bytes) -> None:
        if number < self._next - 1 and number == 0:
            self.on_restart()
            return
        if number < self._next:
            return  # a replay told it already
        if number > self._next >= 0 and not await self._replay(self._next):
            self._forget()
        if number >= self._next:
            self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            events = msgspec.msgpack.decode(payload)[1]
        except (msgspec.DecodeError, IndexError, TypeError, KeyError):
            events = [None]
        before = self.book.num_unreadable
        stored, evicted = self.book.take(events)
        if self.book.num_unreadable and not before:
            log.warning(
                "%s tells KV events of a kind that Relevo does not read; it reads maps with `type`", self._spec.url
            )
        if stored or evicted:
            self._sequence += 1
            if self._tell is not None:
                self._tell(wire.CacheEvents(self._sequence, tuple(stored), tuple(evicted)))

    def _forget(self) -> None:
        """Batches are missing and cannot be had: what is not known is not believed."""
        self.book.clear()
        self._sequence += 1
        if self._tell is not None:
            self._tell(wire.CacheSnapshot(self._sequence, ()))

    async def _replay(self, start: int) -> bool:
        """Batches from `start` on, as far as the engine kept them. False: there is a gap."""
        if not self._spec.replay:
            return False
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt(self._zmq.IPV6, 1)
        is_whole = True
        try:
            socket.connect(self._spec.replay)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            async with asyncio.timeout(REPLAY_S):
                while True:
                    frames = await socket.recv_multipart()
                    number, payload = int.from_bytes(frames[-2], "big", signed=True), frames[-1]
                    if number < 0:
                        return is_whole
                    if number > max(self._next, start):
                        is_whole = False
                    if number >= self._next:
                        self._take(number, payload)
        except TimeoutError:
            return False
        finally:
            socket.close()
