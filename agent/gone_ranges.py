"""Says in the log why consumers skip offsets: ranges that a recovery found to be gone for good
(docs/design/recovery.md#gone-ranges).

Promises one line per range and agent, and at most so many as the setting says.
"""

import asyncio
import logging
from uuid import UUID

from agent.settings import AgentSettings
from sequencer.database.database import SequencerUnavailable
from sequencer.journal.recovery import GoneRanges

log = logging.getLogger("tidelog")


class GoneRangeNotices:
    def __init__(self, gone_ranges: GoneRanges, settings: AgentSettings) -> None:
        self._gone_ranges = gone_ranges
        self._settings = settings
        self._said: set[tuple[UUID, int, int]] = set()

    async def run(self) -> None:
        """Until cancelled."""
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
