"""Counts what each topic's producers and consumers moved, for `/metrics`.

Promises:
- The cost is one addition per topic of a segment, and per partition of a fetch with records. There is none
  per record.
- At most `most_topics` topics have their own counts. Others are counted together, under a name that no topic
  can have. A topic without traffic for `_IDLE_S` gives its place to the next topic that needs one.
- A count never falls while its topic keeps its place.

Counts go by topic id. Names are looked up once per topic, when metrics are read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from storage.identifiers import TopicId
from storage.segments.segment_batches import LENGTH, RECORDS, TOPIC

OTHER: Final = "(other)"
_IDLE_S: Final = 900.0

Sent: TypeAlias = tuple[TopicId, int, int]
"""A topic, and its bytes and records that went to a consumer."""


@dataclass(slots=True)
class _Counts:
    name: str | None = None
    produced_bytes: int = 0
    produced_records: int = 0
    fetched_bytes: int = 0
    fetched_records: int = 0
    reported_bytes: int = -1
    """All bytes at the last reading of the metrics with traffic since the one before."""
    reported_s: float = 0.0

    def add(self, more: "_Counts") -> None:
        self.produced_bytes += more.produced_bytes
        self.produced_records += more.produced_records
        self.fetched_bytes += more.fetched_bytes
        self.fetched_records += more.fetched_records

    def is_idle(self, now_s: float) -> bool:
        all_bytes = self.produced_bytes + self.fetched_bytes
        if all_bytes != self.reported_bytes:
            self.reported_bytes, self.reported_s = all_bytes, now_s
        return now_s - self.reported_s > _IDLE_S


class TopicTraffic(Collector):
    """One per agent, on its event loop. `clock` is monotonic, in seconds."""

    def __init__(self, most_topics: int, clock: Callable[[], float]) -> None:
        self._most_topics = most_topics
        self._clock = clock
        self._topics: dict[TopicId, _Counts] = {}
        self._other = _Counts(name=OTHER)

    def produced(self, topic_ids: Sequence[TopicId], batches: NDArray[np.int64]) -> None:
        """Counts acknowledged batches of a segment, as columns (storage/segments/segment_batches.py)."""
        topics, count = batches[TOPIC], len(topic_ids)
        sizes = np.bincount(topics, batches[LENGTH], count).astype(np.int64).tolist()
        records = np.bincount(topics, batches[RECORDS], count).astype(np.int64).tolist()
        for topic_id, size_bytes, record_count in zip(topic_ids, sizes, records, strict=True):
            if size_bytes:
                counts = self._topics.get(topic_id) or self._admit(topic_id)
                counts.produced_bytes += size_bytes
                counts.produced_records += record_count

    def fetched(self, sent: Sequence[Sent]) -> None:
        """Counts the partitions of a fetch that have records."""
        for topic_id, size_bytes, records in sent:
            counts = self._topics.get(topic_id) or self._admit(topic_id)
            counts.fetched_bytes += size_bytes
            counts.fetched_records += records

    def unnamed(self) -> Collection[TopicId]:
        """Returns topics whose names must be looked up."""
        return [topic_id for topic_id, counts in self._topics.items() if counts.name is None]

    def named(self, asked: Collection[TopicId], names: Mapping[TopicId, str]) -> None:
        """Takes the names that were looked up. A topic without one does not exist any more."""
        for topic_id in asked:
            if topic_id in self._topics:
                self._name(topic_id, names.get(topic_id))

    def collect(self) -> Iterator[Metric]:
        now_s = self._clock()
        idle = [topic_id for topic_id, counts in self._topics.items() if counts.is_idle(now_s)]
        if len(self._topics) >= self._most_topics:
            for topic_id in idle:
                self._let_go(topic_id)
        told = [*(counts for counts in self._topics.values() if counts.name is not None), self._other]
        for field, text in (
            ("produced_bytes", "Bytes of record batches acknowledged"),
            ("produced_records", "Records acknowledged"),
            ("fetched_bytes", "Bytes of record batches sent to consumers"),
            ("fetched_records", "Records sent to consumers, by the offsets that their batches take"),
        ):
            family = CounterMetricFamily(f"tidelog_topic_{field}", text, labels=["topic"])
            for counts in told:
                family.add_metric([counts.name or OTHER], getattr(counts, field))
            yield family

    def _admit(self, topic_id: TopicId) -> _Counts:
        if len(self._topics) >= self._most_topics:
            return self._other
        counts = self._topics[topic_id] = _Counts()
        return counts

    def _name(self, topic_id: TopicId, name: str | None) -> None:
        if name is None:
            self._let_go(topic_id)
            return
        for before in [other for other, counts in self._topics.items() if counts.name == name]:
            self._topics[topic_id].add(self._topics.pop(before))  # a topic of that name was deleted
        self._topics[topic_id].name = name

    def _let_go(self, topic_id: TopicId) -> None:
        self._other.add(self._topics.pop(topic_id))
