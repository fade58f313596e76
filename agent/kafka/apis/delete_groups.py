"""Kafka API 42, DeleteGroups, v0-v2 (KIP-229). Deletes groups without members, with their offsets. Groups
with members are refused.
"""

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from agent.error_codes import group_code
from agent.groups.events import GroupFault
from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, may
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesCoordinator
from sequencer.security.acl import Operation


async def handle(
    request: DeleteGroupsRequest, context: RequestContext[UsesCoordinator]
) -> DeleteGroupsResponse:
    results = [await _delete(group_id, context) for group_id in dict.fromkeys(request.groups_names)]
    return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


async def _delete(group_id: str, context: RequestContext[UsesCoordinator]) -> DeletableGroupResult:
    if not may(Operation.DELETE, GROUP, group_id, context):
        return DeletableGroupResult(
            group_id=GroupId(group_id), error_code=group_code(GroupFault.NOT_AUTHORIZED)
        )
    fault = await context.parts.coordinator.delete(group_id)
    code = ErrorCode.group_id_not_found if fault is GroupFault.INVALID_GROUP else group_code(fault)
    return DeletableGroupResult(group_id=GroupId(group_id), error_code=code)
