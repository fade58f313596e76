"""Produce requests read from their bytes, v3 to v13: what arrives most is neither copied nor taken to pieces by a
general reader.

Pure. Promises that records are left where they are in the frame; that no more is built than there are bytes for, and no
more than `most_partitions` partitions (a topic without any counts as one), nor more tagged fields looked at: a frame of
a hundred megabytes may name tens of millions; and that whatever is no Produce request is a ValueError.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

_NULL: Final = (0, 0)
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INDEX_AND_LENGTH: Final = Struct(">ii")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic:
    """One topic's part of a request: its name until v12, its id from v13 on."""

    name: str
    topic_id: UUID | None
    partitions: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_s: float
    topics: tuple[ProducedTopic, ...]
    records: list[tuple[int, int]]
    """Where in the frame those for each partition of each topic are, in order; null ones are at `(0, 0)`."""
    frame: memoryview

    def take_frame(self) -> memoryview:
        """Hand the frame over, so that it lives no longer than whoever needs it."""
        frame, self.frame = self.frame, memoryview(b"")
        return frame


def read_request(frame: bytes | memoryview, start: int, version: int, most_partitions: int) -> ProduceRequest:
    """The request whose body begins at `start`. Raises ValueError. Bytes after it are let pass, as by Kafka."""
    reader = _Flexible if version >= FIRST_FLEXIBLE_VERSION else _Classic
    cursor = reader(frame, start, most_partitions)
    transactional_id = cursor.nullable_string()
    acks, timeout_ms = cursor.unpack(_ACKS_AND_TIMEOUT)
    topics: list[ProducedTopic] = []
    records: list[tuple[int, int]] = []
    room = most_partitions
    for _ in range(cursor.count()):
        name, topic_id = "", None
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic_id = UUID(bytes=bytes(cursor.take(16)))
        else:
            name = cursor.string()
        in_topic = cursor.count()
        room -= max(1, in_topic)
        if room < 0:
            raise ValueError(f"it names more than {most_partitions} partitions")
        partitions = tuple([cursor.partition(records) for _ in range(in_topic)])
        cursor.tags()
        named = topic_id if topic_id is not None and topic_id.int else None
        topics.append(ProducedTopic(name=name, topic_id=named, partitions=partitions))
    cursor.tags()
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_s=timeout_ms / 1000,
        topics=tuple(topics),
        records=records,
        frame=memoryview(frame),
    )


class _Classic:
    """Reads a body of v3 to v8 from a position on: lengths of fixed size, no tagged fields."""

    __slots__ = ("_data", "_end", "_tags_left", "at")

    def __init__(self, frame: bytes | memoryview, start: int, most_tags: int) -> None:
        self._data = memoryview(frame)
        self._end = len(self._data)
        self._tags_left = most_tags
        self.at = start

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        start, self.at = self.at, self.at + layout.size
        if self.at > self._end:
            raise ValueError("it ends early")
        return layout.unpack_from(self._data, start)

    def take(self, count: int) -> memoryview:
        start, end = self.place(count)
        return self._data[start:end]

    def place(self, count: int) -> tuple[int, int]:
        start, self.at = self.at, self.at + count
        if count < 0 or self.at > self._end:
            raise ValueError(f"a length of {count} reaches beyond its end")
        return start, self.at

    def count(self) -> int:
        """Of an array, which may not be null."""
        return self._checked(self.unpack(_INT32)[0])

    def string(self) -> str:
        return str(self.take(self._checked(self._string_length())), "utf-8")

    def nullable_string(self) -> str | None:
        length = self._string_length()
        return None if length < 0 else str(self.take(length), "utf-8")

    def partition(self, records: list[tuple[int, int]]) -> int:
        """Reads one partition: appends the place of its records and returns its index."""
        index, length = self.unpack(_INDEX_AND_LENGTH)
        records.append(_NULL if length < 0 else self.place(length))
        return index

    def tags(self) -> None:
        """Tagged fields, none of which Produce knows."""

    def _string_length(self) -> int:
        return self.unpack(_INT16)[0]

    def _checked(self, length: int) -> int:
        if length < 0:
            raise ValueError("null where a value must be")
        return length


class _Flexible(_Classic):
    """The same for v9 and later: lengths are varints, one more than the length; tagged fields."""

    __slots__ = ()

    def count(self) -> int:
        return self._checked(self._varint() - 1)

    def partition(self, records: list[tuple[int, int]]) -> int:
        (index,) = self.unpack(_INT32)
        length = self._varint() - 1
        records.append(_NULL if length < 0 else self.place(length))
        self.tags()
        return index

    def tags(self) -> None:
        count = self._varint()
        if not count:
            return
        self._tags_left -= count  # Kafka defines none: each would cost time on the event loop for nothing
        if self._tags_left < 0:
            raise ValueError("it has too many tagged fields")
        for _ in range(count):
            self._varint()
            self.place(self._varint())

    def _string_length(self) -> int:
        return self._varint() - 1

    def _varint(self) -> int:
        if self.at < self._end and (byte := self._data[self.at]) < 0x80:  # as nearly all are
            self.at += 1
            return byte
        value = 0
        for shift in range(0, 35, 7):
            if self.at >= self._end:
                raise ValueError("it ends early")
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a varint is too long")
