"""A Fetch response with tagged fields, written by kio: partitions that moved (KIP-951) or whose reader diverges
(KIP-595), which is rare."""

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18.response import EpochEndOffset, PartitionData
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.serial.writers import Writer
from kio.static.primitive import i32, i64

from agent.error_codes import read_failure_code
from agent.kafka.api import ABSENT
from agent.kafka.apis.fetch.fetch_response import FIRST_VERSION_WITH_TOPIC_IDS, FetchResponse
from agent.kafka.routing.current_leaders import CurrentLeader, NodeEndpoint
from agent.kafka.routing.leader_epochs import OUR_EPOCH
from agent.kafka.transport.vectored import Chunk, RecordSlices, ResponseBuffer
from agent.read_path.fetch_answer import PartitionResult
from storage.identifiers import NodeId

_FETCH_KEY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """What the writers of all versions read: until v12 the name, from v13 on the id."""

    topic: str
    topic_id: UUID | None
    partitions: tuple[PartitionData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    throttle_time: timedelta
    error_code: ErrorCode
    session_id: int
    responses: tuple[_Topic, ...]
    node_endpoints: tuple[NodeEndpoint, ...]


def write_tagged_response(response: FetchResponse, version: int) -> list[Chunk]:
    places = iter(range(sum(len(topic.results) for topic in response.topics)))
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    buffer = ResponseBuffer()
    _writer(version)(
        buffer,  # type: ignore[arg-type]  # kio asks for IO[bytes] and calls write alone
        _Response(
            throttle_time=timedelta(milliseconds=response.throttle_ms),
            error_code=response.error_code,
            session_id=response.session_id,
            responses=tuple(
                _Topic(
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        _partition(result, response.leaders.get(next(places)), by_id, response.read_committed)
                        for result in topic.results
                    ),
                )
                for topic in response.topics
            ),
            node_endpoints=tuple(response.endpoints),
        ),
    )
    _, *body = buffer.buffers()  # the first is a frame's length
    return body


@lru_cache(maxsize=32)
def _writer(version: int) -> Writer[Any]:
    return entity_writer(load_response_schema(_FETCH_KEY, version))


def _partition(result: PartitionResult, leader: NodeId | None, by_id: bool, read_committed: bool) -> PartitionData:
    plan = result.plan
    diverges = plan.diverges and result.failure is None
    return PartitionData(
        partition_index=i32(plan.partition),
        error_code=ErrorCode.none if result.failure is None else read_failure_code(result.failure, by_id=by_id),
        high_watermark=i64(result.high_watermark),
        last_stable_offset=i64(result.last_stable_offset),
        log_start_offset=i64(result.log_start_offset),
        diverging_epoch=EpochEndOffset(epoch=i32(OUR_EPOCH), end_offset=i64(result.high_watermark))
        if diverges
        else ABSENT,
        current_leader=ABSENT if leader is None else CurrentLeader(leader_id=leader),  # type: ignore[arg-type]
        snapshot_id=ABSENT,
        aborted_transactions=() if read_committed else None,
        preferred_read_replica=BrokerId(-1 if plan.preferred_replica is None else plan.preferred_replica),
        records=RecordSlices(result.chunks),  # type: ignore[arg-type] # kio's writer asks only for its length
    )
