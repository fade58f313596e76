"""Kafka API 14, SyncGroup, v0-v5 (KIP-345 static members, KIP-559 protocol type and name).

The answer waits for the leader's assignments, up to the group's rebalance timeout.
"""

from typing import Final

from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from agent.error_codes import sync_code
from agent.groups.events import GroupFault, Sync, SyncAnswer
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation

_FIRST_WITH_PROTOCOL: Final = 5


async def handle(request: SyncGroupRequest, context: RequestContext[UsesCoordinator]) -> SyncGroupResponse:
    answer = await _answer(request, context)
    if isinstance(answer, GroupFault):
        answer = SyncAnswer(fault=answer)
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=sync_code(answer.fault),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


async def _answer(
    request: SyncGroupRequest, context: RequestContext[UsesCoordinator]
) -> SyncAnswer | GroupFault:
    if not may(Operation.READ, GROUP, request.group_id, context):
        return GroupFault.NOT_AUTHORIZED
    has_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= _FIRST_WITH_PROTOCOL and not has_protocol:
        return GroupFault.INCONSISTENT_PROTOCOL
    event = Sync(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={one.member_id: bytes(one.assignment) for one in request.assignments},
    )
    assert context.turn is not None, "SyncGroup is parked"
    return await context.parts.coordinator.ask(
        request.group_id, event, SyncAnswer, when_queued=context.turn.done
    )  # fmt: skip
