"""Kafka API 12, Heartbeat, v0-v4 (KIP-345 static members). Answered from memory."""

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from agent.error_codes import heartbeat_code
from agent.groups.events import GroupFault, Heartbeat, HeartbeatAnswer
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation


async def handle(request: HeartbeatRequest, context: RequestContext[UsesCoordinator]) -> HeartbeatResponse:
    if not may(Operation.READ, GROUP, request.group_id, context):
        return HeartbeatResponse(
            throttle_time=NO_THROTTLE, error_code=heartbeat_code(GroupFault.NOT_AUTHORIZED)
        )
    event = Heartbeat(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    answer = await context.parts.coordinator.ask(request.group_id, event, HeartbeatAnswer)
    fault = answer if isinstance(answer, GroupFault) else answer.fault
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=heartbeat_code(fault))
