"""A lane of the write path: batches that wait for each other, and for no batch of another lane
(docs/overload.md).

Batches marked bulk have a lane for themselves, all others share one. Order holds within a lane. Whoever
changes lanes waits until its batches in the old one have their outcomes (`Produce` does).

Promises of the bulk lane:
- It seals by size and age only, so it takes no token of the PUT budget from others.
- It uploads at most `bulk_uploads` segments at once and leaves one place to others. Its segments have at most
  `bulk_batches_per_commit` batches each.
"""

import asyncio

from agent.settings import AgentSettings
from agent.traffic_class import TrafficClass
from agent.write_path.accumulator import Accumulator, Taken
from agent.write_path.appended_batches import Appended
from agent.write_path.producer_window import OpenWindows
from agent.write_path.seal_queue import SealQueue
from agent.write_path.uploader import Uploader


class Lane:
    """Its parts. The write path moves batches from `gathered` to `queue`, and from there to their commit."""

    __slots__ = (
        "arrived",
        "gathered",
        "is_bulk",
        "most_per_commit",
        "name",
        "places",
        "queue",
        "unacknowledged_bytes",
        "uploader",
        "windows",
    )

    def __init__(self, settings: AgentSettings, uploader: Uploader, windows: OpenWindows | None) -> None:
        """`windows`: of the producers in the open segment, which may seal it early. None: this is the lane of
        bulk.
        """
        self.is_bulk = windows is None
        self.name = TrafficClass.BULK if self.is_bulk else TrafficClass.NORMAL
        self.uploader = uploader
        self.windows = windows
        most_batches = settings.bulk_batches_per_commit if self.is_bulk else None
        self.gathered: Accumulator[Appended] = Accumulator(settings.segment_size_bytes, most_batches)
        self.queue: SealQueue[Taken[Appended]] = SealQueue()
        of_bulk = max(1, min(settings.bulk_uploads, settings.max_uploads - 1))
        self.places = asyncio.Semaphore(of_bulk if self.is_bulk else settings.max_uploads)
        """For uploads. An upload of bulk takes one here and one of the other lane's."""
        self.most_per_commit = 1 if self.is_bulk else settings.max_segments_per_commit
        self.arrived = asyncio.Event()
        self.unacknowledged_bytes = 0

    @property
    def nothing_more_comes(self) -> bool:
        """True if waiting brings nothing. Segments under way bring answers, and answers bring requests, so
        then waiting brings more. Connections fall into step in this way, and one PUT takes the batches of all
        of them.
        """
        return self.windows is not None and self.windows.are_full and not len(self.queue)

    @property
    def oldest_arrival_s(self) -> float | None:
        """When the oldest batch came that has no outcome. None: there is none."""
        sealed_s = self.queue.oldest_arrival_s
        return self.gathered.open_segment.oldest_arrival_s if sealed_s is None else sealed_s
