"""Produce responses as bytes, v3 to v13 (KIP-467 record errors from v8 on, KIP-951 the new leader from v10 on).

Pure. A response for fifty partitions that all went well is one pack for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult
from agent.kafka.apis.produce.produce_request import FIRST_FLEXIBLE_VERSION, FIRST_VERSION_WITH_TOPIC_IDS, ProducedTopic
from agent.kafka.routing.current_leaders import NodeEndpoint
from agent.kafka.routing.leader_epochs import OUR_EPOCH
from storage.batches.batch_validation import NO_TIMESTAMP_MS
from storage.identifiers import NO_OFFSET, Offset

_WITH_LOG_START: Final = 5
_WITH_RECORD_ERRORS: Final = 8
_WITH_LEADERS: Final = 10
_NO_ERROR: Final = ErrorCode.none.value

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_RESULT: Final = Struct(">ihqq")  # index, error code, base offset, log append time
_RESULT_WITH_LOG_START: Final = Struct(">ihqqq")
_LEADER: Final = Struct(">ii")  # node id, epoch


WrittenBatch: TypeAlias = tuple[Offset, int, Offset | None]
"""Where a batch was written now: its base offset; its log append time in ms, NO_TIMESTAMP_MS if the log gives none; the
log start offset, if it is known. A plain tuple, since one is made for every batch: a named one takes four times as
long to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResults:
    """What became of a request's batches, by the number of the partition within the request. A response takes an entry
    in one of the two for each of them."""

    written: Mapping[int, WrittenBatch]
    others: Mapping[int, ProduceResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """`results` are numbered through all partitions of all topics, in order."""

    topics: Sequence[ProducedTopic]
    results: ProduceResults
    throttle_ms: int
    leaders: tuple[NodeEndpoint, ...] = ()


def encode(response: ProduceResponse, version: int) -> bytes:
    """The response's body, after its header."""
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


def _write_partitions(write: "_Writer", partitions: Sequence[int], results: ProduceResults, start: int) -> None:
    """Those from number `start` of the request on."""
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
    """No record errors, no message, no tagged fields."""
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
    """Appends to `out` as the version wants it."""

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
        """No tagged fields."""
        if self._flexible:
            self.out += b"\x00"

    def tag(self, number: int, content: bytes | bytearray) -> None:
        """A single tagged field."""
        self._varint(1)
        self._varint(number)
        self._varint(len(content))
        self.out += content

    def _varint(self, value: int) -> None:
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)
