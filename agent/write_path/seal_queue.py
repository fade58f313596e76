"""Sealed segments on their way to the sequencer, in the order in which they were sealed
(docs/design/commit.md#order-of-commits).

Pure. Promises:
- `committable` is the longest uploaded prefix, never a segment behind one that is still uploading.
- A segment whose upload failed leaves the queue and never returns.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.identifiers import ObjectKey, SegmentId
from storage.segments.segment_batches import PlacedBatches

Waiter = TypeVar("Waiter")


class Stage(Enum):
    UPLOADING = auto()
    UPLOADED = auto()
    FAILED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedSegment(Generic[Waiter]):
    """A sealed segment. `waiters` wait for the outcomes of its batches, each for some, in the order in which
    the batches came. `placed[i]` came as number `order[i]`.
    """

    segment_id: SegmentId
    object_key: ObjectKey
    size_bytes: int
    placed: PlacedBatches
    order: NDArray[np.int64]
    waiters: tuple[Waiter, ...]
    data: bytes
    arrived_s: float
    """When the oldest of its batches came."""
    stage: Stage = field(default=Stage.UPLOADING)


class SealQueue(Generic[Waiter]):
    def __init__(self) -> None:
        self._segments: deque[QueuedSegment[Waiter]] = deque()

    def __len__(self) -> int:
        return len(self._segments)

    def append(self, segment: QueuedSegment[Waiter]) -> None:
        self._segments.append(segment)

    def committable(self, most: int) -> list[QueuedSegment[Waiter]]:
        """Returns the longest prefix that is uploaded, at most `most` segments. They stay in the queue until
        `remove`.
        """
        self._drop_failed()
        prefix: list[QueuedSegment[Waiter]] = []
        for segment in self._segments:
            if segment.stage is not Stage.UPLOADED or len(prefix) == most:
                break
            prefix.append(segment)
        return prefix

    @property
    def oldest_arrival_s(self) -> float | None:
        """When the oldest batch came that still waits. None: none does."""
        self._drop_failed()
        return self._segments[0].arrived_s if self._segments else None

    def remove(self, prefix: list[QueuedSegment[Waiter]]) -> None:
        """Removes what `committable` returned."""
        for expected in prefix:
            segment = self._segments.popleft()
            assert segment is expected, "only a prefix is removed"

    def drain(self) -> list[QueuedSegment[Waiter]]:
        """Removes everything, when the agent gives up."""
        left = list(self._segments)
        self._segments.clear()
        return left

    def _drop_failed(self) -> None:
        while self._segments and self._segments[0].stage is Stage.FAILED:
            self._segments.popleft()
