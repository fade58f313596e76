"""Kafka API 28, TxnOffsetCommit, v0-v5 (KIP-98; KIP-447: from v3 on the group's generation and member are
checked; KIP-890: from v5 on the request adds its group to the transaction).

The offsets are committed when their transaction is. Until then OffsetFetch with `require_stable` answers
UNSTABLE_OFFSET_COMMIT.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
)
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from agent.error_codes import PENDING_OFFSETS_CODES, commit_code
from agent.groups.events import GroupFault
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TOPIC, TRANSACTIONAL_ID, may, permitted
from agent.kafka.context import RequestContext
from agent.kafka.transactions import AWAY, can_be_transactional_id, producer_of
from agent.kafka.uses import UsesCoordinator, UsesGroupSettings, UsesSequencer, UsesTopics
from sequencer.commits.transactions import OffsetVerdict
from sequencer.groups.committed_offsets import CommittedOffset, OffsetCommit, PartitionKey
from sequencer.security.acl import Operation
from sequencer.topics.topics import Topic
from storage.identifiers import Offset, Partition


class _Uses(UsesCoordinator, UsesGroupSettings, UsesSequencer, UsesTopics, Protocol):
    """The parts that this API uses."""


_FIRST_THAT_ADDS_GROUPS: Final = 5
_NO_GENERATION: Final = -1

_Judged = tuple[PartitionKey, CommittedOffset] | ErrorCode


async def handle(request: TxnOffsetCommitRequest, context: RequestContext[_Uses]) -> TxnOffsetCommitResponse:
    refused = _refusal(request, context)
    if refused is not None:
        return _respond(request, [[refused] * len(topic.partitions) for topic in request.topics], refused)
    readable = permitted(Operation.READ, TOPIC, (topic.name for topic in request.topics), context)
    try:
        topics = await context.parts.topics.by_name({topic.name for topic in request.topics})
        judged: list[list[_Judged]] = [
            [_judge(partition, topics.get(topic.name), context) for partition in topic.partitions]
            if topic.name in readable
            else [ErrorCode.topic_authorization_failed] * len(topic.partitions)
            for topic in request.topics
        ]
        offsets = [one for of_topic in judged for one in of_topic if not isinstance(one, ErrorCode)]
        code = await _commit(request, offsets, context) if offsets else ErrorCode.none
    except AWAY:
        code, judged = ErrorCode.coordinator_not_available, []
    return _respond(request, judged, code)


def _refusal(request: TxnOffsetCommitRequest, context: RequestContext[_Uses]) -> ErrorCode | None:
    if not may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id, context):
        return ErrorCode.transactional_id_authorization_failed
    if not may(Operation.READ, GROUP, request.group_id, context):
        return ErrorCode.group_authorization_failed
    return None


def _respond(
    request: TxnOffsetCommitRequest, judged: Sequence[Sequence[_Judged]], code: ErrorCode
) -> TxnOffsetCommitResponse:
    """`code`: of the partitions that were accepted, and of all if none was judged."""
    return TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=one if isinstance(one, ErrorCode) else code,
                    )
                    for partition, one in zip(
                        topic.partitions,
                        judged[place] if judged else [code] * len(topic.partitions),
                        strict=True,
                    )
                ),
            )
            for place, topic in enumerate(request.topics)
        ),
    )


def _judge(
    partition: TxnOffsetCommitRequestPartition, topic: Topic | None, context: RequestContext[_Uses]
) -> _Judged:
    if topic is None or not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    metadata = partition.committed_metadata or ""
    if len(metadata.encode()) > context.parts.group_settings.offset_metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    committed = CommittedOffset(
        offset=Offset(partition.committed_offset),
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
    )
    return (topic.topic_id, Partition(partition.partition_index)), committed


async def _commit(
    request: TxnOffsetCommitRequest,
    offsets: Sequence[tuple[PartitionKey, CommittedOffset]],
    context: RequestContext[_Uses],
) -> ErrorCode:
    if not can_be_transactional_id(request.transactional_id):
        return ErrorCode.invalid_request
    commit = await _fenced(request, offsets, context)
    if isinstance(commit, GroupFault):
        return commit_code(commit, says_group_not_found=False)
    verdict = await context.parts.sequencer.transactions.commit_offsets(
        producer_of(request), commit, adds_group=context.api_version >= _FIRST_THAT_ADDS_GROUPS
    )
    if verdict is OffsetVerdict.NOT_COORDINATOR:
        context.parts.coordinator.lost(
            {commit.group_id: commit.coordinator_epoch}, GroupFault.NOT_COORDINATOR
        )
    return PENDING_OFFSETS_CODES[verdict]


async def _fenced(
    request: TxnOffsetCommitRequest,
    offsets: Sequence[tuple[PartitionKey, CommittedOffset]],
    context: RequestContext[_Uses],
) -> OffsetCommit | GroupFault:
    """Returns the commit with what must hold of its group. As in Kafka, a request that names no member is
    not checked: older producers do not know theirs.
    """
    names_member = bool(
        request.generation_id > _NO_GENERATION or request.member_id or request.group_instance_id is not None
    )
    running = await context.parts.coordinator.group(request.group_id, create=not names_member)
    if isinstance(running, GroupFault):
        return running
    fence: Mapping[str, int | str | None] = {}
    if names_member:
        found = running.check_commit(request.member_id, request.group_instance_id, request.generation_id)
        if isinstance(found, GroupFault):
            return found
        fence = {
            "generation": found.generation,
            "member_id": found.member_id,
            "member_epoch": found.member_epoch,
        }
    return OffsetCommit(
        group_id=running.group_id,
        coordinator_epoch=running.coordinator_epoch,
        offsets=[(*key, offset) for key, offset in offsets],
        **fence,  # type: ignore[arg-type]
    )
