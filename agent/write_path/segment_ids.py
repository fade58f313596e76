"""Segment ids, reserved in the sequencer ahead of need (docs/design/write-path.md#segment-ids).

Promises:
- An id that is handed out stays reserved for at least half its lease.
- This agent owned the id's object on the ring when the id was reserved. So a new object is cached where this
  zone's readers look for it.
- Ids are handed out in ascending order. A recovery that knows only the ids appends an agent's segments in the
  order in which they were sealed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent.settings import AgentSettings
from agent.write_path.backoff import Backoff
from cache_ring.ring.membership import Membership
from sequencer.commits.commits import Reservations
from sequencer.database.database import SequencerUnavailable
from storage.identifiers import ObjectKey, SegmentId, new_segment_id
from storage.segments.keys import segment_key

log = logging.getLogger("tidelog")

_DRAWS_PER_AGENT = 8
"""Ids drawn to find one that this agent owns, for each agent of its zone. After that any id is taken (one in
three thousand).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedId:
    segment_id: SegmentId
    object_key: ObjectKey
    usable_until_s: float


class SegmentIds:
    """A stock of reserved ids, which `run` fills."""

    def __init__(
        self,
        reservations: Reservations,
        membership: Membership,
        settings: AgentSettings,
        clock: Callable[[], float],
    ) -> None:
        self._reservations = reservations
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._stock: deque[ReservedId] = deque()
        self._taken = asyncio.Event()
        self._stocked = asyncio.Event()

    async def take(self) -> ReservedId:
        """Returns the oldest id in stock. Waits while there is none."""
        while True:
            self._drop_stale()
            if self._stock:
                reserved = self._stock.popleft()
                if len(self._stock) <= self._settings.reserved_segment_ids // 2:
                    self._taken.set()
                return reserved
            self._taken.set()
            self._stocked.clear()
            await self._stocked.wait()

    async def run(self) -> None:
        """Keeps the stock filled until cancelled. Tries again if the sequencer is away."""
        backoff = Backoff(self._settings.commit_backoff_s)
        while True:
            try:
                await self._fill()
                backoff.reset()
            except SequencerUnavailable as error:
                log.warning("segment ids cannot be reserved", extra={"error": str(error)})
                await backoff.wait()
                continue
            self._taken.clear()
            await self._taken.wait()

    async def _fill(self) -> None:
        missing = self._settings.reserved_segment_ids - len(self._stock)
        if missing <= 0:
            return
        sent_s = self._clock()
        keys = dict(sorted([await self._draw() for _ in range(missing)]))
        self_ = self._membership.self_
        writer = "" if self_ is None else str(self_.node_id)
        await self._reservations.reserve(keys, self._settings.reservation_lease_s, writer)
        usable_until_s = sent_s + self._settings.reservation_lease_s / 2
        self._stock.extend(
            ReservedId(segment_id=segment_id, object_key=key, usable_until_s=usable_until_s)
            for segment_id, key in keys.items()
        )
        self._stocked.set()

    async def _draw(self) -> tuple[SegmentId, ObjectKey]:
        """Yields to other tasks before each id, because one takes milliseconds in a zone of hundreds of
        agents. The owner is the one in the lease's view, which stays the owner while other agents are
        suspected.
        """
        await asyncio.sleep(0)
        ring, self_ = self._membership.leased, self._membership.self_
        in_zone = sum(agent.address.zone == self._settings.zone for agent in ring.agents)
        for _ in range(_DRAWS_PER_AGENT * max(1, in_zone)):
            segment_id = new_segment_id()
            key = segment_key(self._settings.cluster, segment_id)
            owner = ring.owner(self._settings.zone, key)
            if owner is None or self_ is None or owner.node_id == self_.node_id:
                break
        return segment_id, key

    def _drop_stale(self) -> None:
        """Leaves ids past half their lease to the housekeeper."""
        now_s = self._clock()
        while self._stock and self._stock[0].usable_until_s < now_s:
            self._stock.popleft()
