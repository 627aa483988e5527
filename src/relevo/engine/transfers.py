"""Prompts on their way to other workers, between steps: what the transports report of them is told to the core.

Owns no state. What follows is the core's to decide, and `engine.outgoing`'s to carry out.
"""

from __future__ import annotations

from dataclasses import dataclass

from relevo.core.events import WritesEnded
from relevo.engine.outgoing import Outgoing
from relevo.kv.transport_set import TransportSet
from relevo.policy.worker.core import WorkerCore


@dataclass(slots=True)
class Transfers:
    core: WorkerCore
    transports: TransportSet
    outgoing: Outgoing

    def take_events(self) -> None:
        for event in self.transports.poll():
            if isinstance(event, WritesEnded):
                self.outgoing.writes_ended(event.reservation.request_id)
                continue
            with self.outgoing.only(event.reservation.request_id):
                self.core.take_transfer_event(event)

    def hand_over(self) -> None:
        """Let go of prompts that their receivers have."""
        for request_id in self.core.take_sealed():
            with self.outgoing.only(request_id):
                self.core.hand_over(request_id)

    def drop_withdrawn(self) -> None:
        """End prompts whose receivers took back the room for them."""
        for remote in self.core.remote_prefills:
            reservation = remote.reservation
            with self.outgoing.only(reservation.request_id):
                if not self.transports[remote.path.transport].may_write(reservation):
                    self.core.withdraw(reservation.request_id)
