"""Kafka API 12, Heartbeat, v0-v4 (KIP-345 static members). Answered from memory."""

from typing import Any

from kio.schema.heartbeat.v4.response import HeartbeatResponse

from agent.group_error_codes import heartbeat_code
from agent.groups.events import GroupFault, Heartbeat, HeartbeatAnswer
from agent.kafka.api import NO_THROTTLE
from agent.kafka.context import RequestContext


async def handle(request: Any, context: RequestContext) -> HeartbeatResponse:
    event = Heartbeat(
        token=context.parts.coordinator.next_token(),
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
    )
    answer = await context.parts.coordinator.ask(request.group_id, event, HeartbeatAnswer)
    fault = answer if isinstance(answer, GroupFault) else answer.fault
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=heartbeat_code(fault))
