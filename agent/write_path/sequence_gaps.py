"""How long a batch that came before its predecessor is sent back to be tried again
(docs/design/write-path.md#sequence-gaps, producer state).

A producer's partition moves to another agent while up to five of its batches are still under way through the first
one; or one batch of several in flight failed to upload. What comes after is then out of order, through no fault of the
producer. OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka give up, or begin a new epoch while the missing batch may still
be written; an error that clients take for a passing one makes each send its batches again, in order, until the
missing one is there.

Pure: time is a parameter, in monotonic seconds. Promises that a gap is borne for `patience_s` from when it was first
seen, and no longer unless the producer makes progress in between; and that at most `max_gaps` are remembered.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from storage.identifiers import Partition, ProducerId, TopicId

ProducerPlace: TypeAlias = tuple[TopicId, Partition, ProducerId, int]
"""A producer of an epoch in a partition: what has a sequence of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    first_seen_s: float
    last_seen_s: float


class SequenceGaps:
    """The gaps that this agent has seen lately."""

    def __init__(self, patience_s: float, max_gaps: int) -> None:
        self._patience_s = patience_s
        self._max_gaps = max_gaps
        self._gaps: OrderedDict[ProducerPlace, _Gap] = OrderedDict()

    def bears(self, place: ProducerPlace, now_s: float) -> bool:
        """A batch was out of order: whether its producer should try again. One that was not heard of for as long as
        the patience lasts has gone on elsewhere in the meantime: its gap is a new one."""
        known = self._gaps.pop(place, None)
        is_new = known is None or now_s - known.last_seen_s > self._patience_s
        gap = _Gap(first_seen_s=now_s if known is None or is_new else known.first_seen_s, last_seen_s=now_s)
        self._gaps[place] = gap
        if len(self._gaps) > self._max_gaps:
            self._gaps.popitem(last=False)
        return now_s - gap.first_seen_s < self._patience_s

    def closed(self, place: ProducerPlace) -> None:
        """A batch of the producer was written."""
        self._gaps.pop(place, None)

    def __len__(self) -> int:
        return len(self._gaps)
