"""Notices in the log for people: consumers that skip offsets which a recovery found to be lost
(docs/design/recovery.md#gone-ranges), and producers that their own windows limit (docs/tuning.md).

Promise: one line per range or client id and agent, and at most as many lines as the setting says.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

from agent.kafka.context import ConnectionState
from agent.settings import AgentSettings
from agent.write_path.producer_window import advice
from sequencer.database.database import SequencerUnavailable
from sequencer.journal.recovery import GoneRanges

log = logging.getLogger("tidelog")


class GoneRangeNotices:
    def __init__(self, gone_ranges: GoneRanges, settings: AgentSettings) -> None:
        self._gone_ranges = gone_ranges
        self._settings = settings
        self._said: set[tuple[UUID, int, int]] = set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self.look()
            except SequencerUnavailable as error:
                log.debug("gone ranges cannot be read", extra={"error": str(error)})
            await asyncio.sleep(self._settings.gone_ranges_look_s)

    async def look(self) -> None:
        """Logs the ranges that were not logged yet. Raises SequencerUnavailable."""
        for gone in await self._gone_ranges.first(self._settings.gone_ranges_logged):
            name = (gone.topic_id, gone.partition, gone.base_offset)
            if name not in self._said:
                self._said.add(name)
                log.warning(
                    "offsets are gone, and consumers skip them",
                    extra={
                        "topic": gone.topic,
                        "partition": gone.partition,
                        "base_offset": gone.base_offset,
                        "last_offset": gone.last_offset,
                        "reason": gone.reason,
                        "found_at": gone.found_at.isoformat(),
                    },
                )


class ProducerNotices:
    def __init__(self, clients: Callable[[], Iterable[ConnectionState]], settings: AgentSettings) -> None:
        self._clients = clients
        self._settings = settings
        self._advised: set[str] = set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._settings.producer_advice_look_s)
            self.look()

    def look(self) -> None:
        """Logs what is new."""
        for client in self._clients():
            name = client.client_id or ""
            if name in self._advised or len(self._advised) >= self._settings.producer_advice_logged:
                continue
            said = advice(client.window, client.software_name)
            if said is not None:
                self._advised.add(name)
                log.info(
                    "a producer is limited by its own window",
                    extra={
                        "client_id": name,
                        "library": client.software_name,
                        "peer": client.peer,
                        "advice": said,
                    },
                )
