"""From an engine's address to a link: it is reached, asked what it is, compared with the others, and has computed a
token over this very path before it counts as there. Two that are to hand over have done so once."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from relevo.client.http import CLIENT_ERRORS
from relevo.core.errors import RelevoError, SettingsError, WorkerLost
from relevo.core.events import WorkerLoad
from relevo.core.handoff import NO_SITE, Ability
from relevo.core.ids import WorkerId
from relevo.engines.client import EngineClient
from relevo.engines.kv_events import Follower
from relevo.engines.layout import layout_of, site_of
from relevo.engines.link import EngineLink
from relevo.engines.pool import EnginePool, Peer, probe_ask
from relevo.engines.sglang import SGLangProtocol
from relevo.engines.spec import EngineSpec, key_of
from relevo.engines.vllm import VLLMProtocol
from relevo.engines.words import EngineFacts, EngineProtocol, NotFitting
from relevo.wire import messages as wire
from relevo.wire.messages import PROTOCOL_VERSION, Hello

log = logging.getLogger("relevo.gateway")

PROTOCOLS: dict[str, EngineProtocol] = {"vllm": VLLMProtocol(), "sglang": SGLangProtocol()}
RETRY_S = 0.5  # arbitrary
TOKEN_S = 60.0  # for the first token of all: a cold engine compiles; arbitrary
PARTNER_S = 1.0  # how often an engine that cannot work alone looks for another; arbitrary


@dataclass(slots=True)
class Opener:
    """One engine of a pool, through all its incarnations. `open` is called again after each end."""

    spec: EngineSpec
    pool: EnginePool
    retry_s: float = RETRY_S
    _epoch: int = 0
    _said: str = ""
    _closed: str = ""
    _link: EngineLink | None = field(default=None, init=False)

    async def open(self) -> EngineLink:
        """Waits until it is there. Raises NotFitting once for each reason why it is not: then it is called again;
        WorkerLost once it is closed."""
        self.pool.start()
        while True:
            if self._closed:
                raise WorkerLost(self._closed)
            try:
                link = await self._open_once()
            except NotFitting as error:
                reason = error.message
            except CLIENT_ERRORS as error:
                reason = f"{self.spec.url} does not answer ({_words(error)}); start it, or mend the address"
            except RelevoError as error:
                reason = f"{self.spec.url} computes no token: {error.message}"
            else:
                self._said, self._link = "", link
                return link
            if reason != self._said:
                self._said = reason
                raise NotFitting(f"{self.spec.worker_id}: {reason}")
            await asyncio.sleep(self.retry_s)

    def end(self, reason: str) -> None:
        """Of the present link, if there is one."""
        if self._link is not None:
            self._link.end(reason)

    def drain(self) -> None:
        """What it has is finished, nothing new goes there."""
        if self._link is not None and not self._link.has_ended:
            self._link.send(wire.Drain())

    def close(self, reason: str) -> None:
        """It is not waited for any more."""
        self._closed = reason
        self.end(reason)

    async def _open_once(self) -> EngineLink:
        spec = self.spec
        try:
            client = EngineClient(spec.url, PROTOCOLS[spec.engine], key_of(spec))
        except SettingsError as error:
            raise NotFitting(error.message) from None
        peer: Peer | None = None
        try:
            await client.__aenter__()
            facts = await client.facts()
            check_facts(spec, facts)
            peer = Peer(spec, client, facts)
            self.pool.add(peer)
            await self._first_token(peer)
            return await self._linked(peer)
        except BaseException:
            if peer is not None:
                self.pool.remove(peer)
            await client.close()
            raise

    async def _first_token(self, peer: Peer) -> None:
        """Of the engine alone, and of a pair with each engine that it may work with."""
        spec, pool = self.spec, self.pool
        if spec.role == "unified" or spec.handoff.decodes_alone:
            prompt = tuple(1 + n % max(1, spec.vocab_size - 1) for n in range(4))
            await peer.client.answer(probe_ask(peer, pool.name(), prompt, {}), TOKEN_S)
        if spec.role == "unified":
            return
        await self._pair(peer)
        while peer.why_not_paired and not spec.handoff.decodes_alone:
            if peer.why_not_paired != self._said:
                raise NotFitting(peer.why_not_paired)
            await asyncio.sleep(PARTNER_S)
            await self._pair(peer)

    async def _pair(self, peer: Peer) -> None:
        other = "decode" if self.spec.role == "prefill" else "prefill"
        partners = self.pool.others(other)
        if not partners:
            peer.why_not_paired = f"no {other} engine answers yet"
        for partner in partners:
            prefill, decode = (peer, partner) if other == "decode" else (partner, peer)
            why = await self.pool.try_pair(prefill, decode)
            peer.why_not_paired = why
            if not why:
                partner.why_not_paired = ""
                break
        self.pool.count_pairs()
        if partners and peer.why_not_paired:
            log.error("requests are not split: %s", peer.why_not_paired)

    async def _linked(self, peer: Peer) -> EngineLink:
        spec = self.spec
        self._epoch = max(self._epoch + 1, int(time.time()))
        is_alone = spec.role == "unified" or (bool(peer.why_not_paired) and bool(self._partners()))
        hello = Hello(
            protocol_version=PROTOCOL_VERSION,
            worker_id=WorkerId(spec.worker_id),
            epoch=self._epoch,
            pid=0,
            role=spec.role,
            layout=layout_of(spec),
            model_name=spec.served_name,
            vocab_size=spec.vocab_size,
            max_model_len=peer.facts.max_model_len or spec.max_model_len,
            kv_site=NO_SITE if is_alone else site_of(spec),
            load=WorkerLoad(num_free_blocks=peer.facts.num_blocks, num_total_blocks=peer.facts.num_blocks),
            abilities=_ABILITIES[spec.role],
        )
        link = EngineLink(hello, peer, self.pool)
        if is_alone and spec.role != "unified":
            link.keep(self.pool.spawn(self._try_again(peer, link)))
        if spec.events:
            follower = Follower(spec)
            link.follow_with(follower)
        return link

    def _partners(self) -> list[Peer]:
        return self.pool.others("decode" if self.spec.role == "prefill" else "prefill")

    async def _try_again(self, peer: Peer, link: EngineLink) -> None:
        """A pair that could not hand over is tried until it can; then it joins anew."""
        while True:
            await asyncio.sleep(10 * self.retry_s)
            await self._pair(peer)
            if not peer.why_not_paired:
                link.end("a handoff works now, so it joins anew")
                return


_ABILITIES = {
    "prefill": frozenset((Ability.PREFILL,)),
    "decode": frozenset((Ability.RESERVE,)),
    "unified": frozenset[Ability](),
}


def check_facts(spec: EngineSpec, facts: EngineFacts) -> None:
    """Raises NotFitting for what the engine says that Relevo was told otherwise."""
    if spec.model and facts.served_names and spec.model not in facts.served_names:
        names = ", ".join(facts.served_names)
        raise NotFitting(
            f"{spec.url} serves {names}, not {spec.model}; write model={facts.served_names[0]}, or start it with that "
            "model"
        )
    if facts.role and facts.role != spec.role:
        raise NotFitting(
            f"{spec.url} says that it is a {facts.role} engine, and --worker says role={spec.role}; change one of them"
        )
    if facts.block_size and facts.block_size != spec.block_size:
        raise NotFitting(
            f"{spec.url} has blocks of {facts.block_size} tokens and Relevo counts in {spec.block_size}; start Relevo "
            f"with --block-size {facts.block_size}"
        )
    if facts.max_model_len and spec.max_model_len and facts.max_model_len < spec.max_model_len:
        raise NotFitting(
            f"{spec.url} takes {facts.max_model_len} tokens at most and Relevo promises {spec.max_model_len}; start "
            f"Relevo with --max-model-len {facts.max_model_len}"
        )


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
