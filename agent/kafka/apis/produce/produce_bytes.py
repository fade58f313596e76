"""Produce requests and responses as bytes, v3 to v13 (KIP-467 record errors from v8 on, KIP-951 new leaders
from v10 on). A general reader would copy and take apart what arrives most.

Pure. Promises of `read_request`:
- Records stay where they are in the frame.
- No more is built than there are bytes for. At most `most_partitions` partitions (a topic without any counts
  as one) and tagged fields are read, because a frame of a hundred megabytes may name tens of millions.
- Other bytes are a ValueError.

A response for fifty successful partitions is one pack for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult
from agent.kafka.routing.current_leaders import OUR_EPOCH, NodeEndpoint
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.identifiers import NO_OFFSET, Offset, TopicId

FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

_NULL: Final = (0, 0)
_INT16: Final = Struct(">h")
_API: Final = Struct(">hh4x")
_INT32: Final = Struct(">i")
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INDEX_AND_LENGTH: Final = Struct(">ii")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic:
    """One topic's part of a request: its name until v12, its id from v13 on."""

    name: str
    topic_id: UUID | None
    partitions: tuple[int, ...]


_ATTRIBUTES_AT: Final = 22
"""The position of a batch's lower byte of attributes."""
_TRANSACTIONAL: Final = 0x10


@dataclass(slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_s: float
    topics: tuple[ProducedTopic, ...]
    records: list[tuple[int, int]]
    """The place in the frame of the records for each partition of each topic, in order. Null records are at
    `(0, 0)`.
    """
    frame: memoryview

    def is_transactional(self, number: int) -> bool:
        """Returns whether the first batch of a partition is, as far as its bytes say."""
        start, end = self.records[number]
        return end - start > _ATTRIBUTES_AT and bool(self.frame[start + _ATTRIBUTES_AT] & _TRANSACTIONAL)

    def take_frame(self) -> memoryview:
        """Hands the frame over, so that it lives only as long as its user needs it."""
        frame, self.frame = self.frame, memoryview(b"")
        return frame


def read_request(frame: bytes | memoryview, start: int, version: int, most_partitions: int) -> ProduceRequest:
    """Returns the request whose body begins at `start`. Raises ValueError. As in Kafka, bytes behind it are
    ignored.
    """
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


def first_topic(frame: bytes | memoryview) -> str | TopicId | None:
    """Returns the first topic that a Produce request names, from the first bytes of its frame. None: it is no
    Produce, or these bytes do not say.
    """
    try:
        header = _Classic(frame, 0, 0)
        api_key, version = header.unpack(_API)
        if api_key != 0:
            return None
        header.nullable_string()
        cursor = (_Flexible if version >= FIRST_FLEXIBLE_VERSION else _Classic)(frame, header.at, 100)
        cursor.tags()
        cursor.nullable_string()
        cursor.unpack(_ACKS_AND_TIMEOUT)
        if not cursor.count():
            return None
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            return TopicId(UUID(bytes=bytes(cursor.take(16))))
        return cursor.string()
    except ValueError:
        return None


class _Classic:
    """Reads a body of v3 to v8: lengths have a fixed size, and there are no tagged fields."""

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
        """Returns the length of an array, which must not be null."""
        return self._checked(self.unpack(_INT32)[0])

    def string(self) -> str:
        return str(self.take(self._checked(self._string_length())), "utf-8")

    def nullable_string(self) -> str | None:
        length = self._string_length()
        return None if length < 0 else str(self.take(length), "utf-8")

    def partition(self, records: list[tuple[int, int]]) -> int:
        """Reads one partition. Appends the place of its records and returns its index."""
        index, length = self.unpack(_INDEX_AND_LENGTH)
        records.append(_NULL if length < 0 else self.place(length))
        return index

    def tags(self) -> None:
        """Skips tagged fields: Produce has none."""

    def _string_length(self) -> int:
        return self.unpack(_INT16)[0]

    def _checked(self, length: int) -> int:
        if length < 0:
            raise ValueError("null where a value must be")
        return length


class _Flexible(_Classic):
    """Reads a body of v9 and later: lengths are varints, one more than the length, and there are tagged
    fields.
    """

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
        self._tags_left -= count  # Kafka defines none, and each would cost time on the event loop
        if self._tags_left < 0:
            raise ValueError("it has too many tagged fields")
        for _ in range(count):
            self._varint()
            self.place(self._varint())

    def _string_length(self) -> int:
        return self._varint() - 1

    def _varint(self) -> int:
        if self.at < self._end and (byte := self._data[self.at]) < 0x80:  # nearly all have one byte
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


_WITH_LOG_START: Final = 5
_WITH_RECORD_ERRORS: Final = 8
_WITH_LEADERS: Final = 10
_NO_ERROR: Final = ErrorCode.none.value

_RESULT: Final = Struct(">ihqq")  # index, error code, base offset, log append time
_RESULT_WITH_LOG_START: Final = Struct(">ihqqq")
_LEADER: Final = Struct(">ii")  # node id, epoch


WrittenBatch: TypeAlias = tuple[Offset, int, Offset | None]
"""The result of a batch that was written: its base offset; its log append time in ms, or NO_TIMESTAMP_MS; the
log start offset, if it is known. A plain tuple, because there is one for every batch, and a named tuple takes
four times as long to make.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResults:
    """The outcomes of a request's batches, by the index of the partition within the request. A response takes
    one entry for each, in one of the two.
    """

    written: Mapping[int, WrittenBatch]
    others: Mapping[int, ProduceResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """`results` are indexed through all partitions of all topics, in order."""

    topics: Sequence[ProducedTopic]
    results: ProduceResults
    throttle_ms: int
    leaders: tuple[NodeEndpoint, ...] = ()


def encode(response: ProduceResponse, version: int) -> bytes:
    """Returns the response's body, without its header."""
    write = _Writer(version)
    start = 0
    write.count(len(response.topics))
    for topic in response.topics:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            write.out += topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        else:
            write.string(topic.name)
        write.count(len(topic.partitions))
        _write_partitions(write, topic.partitions, response.results, start)
        start += len(topic.partitions)
        write.tags()
    write.out += _INT32.pack(response.throttle_ms)
    _write_endpoints(write, response.leaders if version >= _WITH_LEADERS else ())
    return bytes(write.out)


def _write_partitions(
    write: "_Writer", partitions: Sequence[int], results: ProduceResults, start: int
) -> None:
    """Writes the partitions from index `start` of the request on."""
    nothing_wrong = _nothing_wrong(write.version)
    for number, partition in enumerate(partitions, start):
        written = results.written.get(number)
        if written is None:
            _write_other(write, partition, results.others[number])
            continue
        base_offset, time_ms, log_start = written
        if write.version >= _WITH_LOG_START:
            known_start = NO_OFFSET if log_start is None else log_start
            write.out += _RESULT_WITH_LOG_START.pack(partition, _NO_ERROR, base_offset, time_ms, known_start)
            write.out += nothing_wrong
        else:
            write.out += _RESULT.pack(partition, _NO_ERROR, base_offset, time_ms) + nothing_wrong


def _write_other(write: "_Writer", partition: int, result: ProduceResult) -> None:
    time_ms = NO_TIMESTAMP_MS if result.log_append_time_ms is None else result.log_append_time_ms
    body = (partition, result.code, result.base_offset, time_ms)
    if write.version >= _WITH_LOG_START:
        write.out += _RESULT_WITH_LOG_START.pack(*body, result.log_start_offset)
    else:
        write.out += _RESULT.pack(*body)
    if result.code is ErrorCode.none:
        write.out += _nothing_wrong(write.version)
    else:
        _write_errors(write, result)


def _nothing_wrong(version: int) -> bytes:
    """Writes no record errors, no message, no tagged fields."""
    if version < _WITH_RECORD_ERRORS:
        return b""
    return b"\x01\x00\x00" if version >= FIRST_FLEXIBLE_VERSION else b"\x00\x00\x00\x00\xff\xff"


def _write_errors(write: "_Writer", result: ProduceResult) -> None:
    if write.version >= _WITH_RECORD_ERRORS:
        write.count(len(result.records))
        for record in result.records:
            write.out += _INT32.pack(record.index)
            write.string(record.message)
            write.tags()
        write.string(result.message)
    if write.version >= _WITH_LEADERS and result.leader is not None:
        write.tag(0, _LEADER.pack(result.leader, OUR_EPOCH) + b"\x00")
    else:
        write.tags()


def _write_endpoints(write: "_Writer", leaders: Sequence[NodeEndpoint]) -> None:
    if not leaders:
        write.tags()
        return
    inner = _Writer(write.version)
    inner.count(len(leaders))
    for endpoint in leaders:
        inner.out += _INT32.pack(endpoint.node_id)
        inner.string(endpoint.host)
        inner.out += _INT32.pack(endpoint.port)
        inner.string(endpoint.rack)
        inner.tags()
    write.tag(0, inner.out)


class _Writer:
    """Appends to `out` in the form of the version."""

    __slots__ = ("_flexible", "out", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self._flexible = version >= FIRST_FLEXIBLE_VERSION
        self.out = bytearray()

    def count(self, count: int) -> None:
        if self._flexible:
            self._varint(count + 1)
        else:
            self.out += _INT32.pack(count)

    def string(self, text: str | None) -> None:
        data = b"" if text is None else text.encode()
        if self._flexible:
            self._varint(0 if text is None else len(data) + 1)
        else:
            self.out += _INT16.pack(-1 if text is None else len(data))
        self.out += data

    def tags(self) -> None:
        """Writes no tagged fields."""
        if self._flexible:
            self.out += b"\x00"

    def tag(self, number: int, content: bytes | bytearray) -> None:
        """Writes a single tagged field."""
        self._varint(1)
        self._varint(number)
        self._varint(len(content))
        self.out += content

    def _varint(self, value: int) -> None:
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)
