"""Kafka API 10, FindCoordinator, v0-v6 (KIP-699 batches of keys).

The coordinator of a group or of a transactional id is the ring's choice among all agents. Behind one address,
that address is named. Any agent carries out the steps of any transaction: the choice only spreads the load.
Refused, with a message: share groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from agent.kafka.api import NO_THROTTLE
from agent.kafka.authorization import GROUP, TRANSACTIONAL_ID, may
from agent.kafka.context import RequestContext
from agent.kafka.routing.routing import UsesRouting, coordinator_of
from sequencer.security.acl import Operation

_GROUP: Final = 0
_TRANSACTION: Final = 1
_KINDS: Final = {_GROUP: "group", _TRANSACTION: "transaction"}
_RESOURCES: Final = {_GROUP: GROUP, _TRANSACTION: TRANSACTIONAL_ID}
_NOT_AUTHORIZED: Final = {
    _GROUP: ErrorCode.group_authorization_failed,
    _TRANSACTION: ErrorCode.transactional_id_authorization_failed,
}
_FIRST_BATCHED_VERSION: Final = 4


class FindCoordinatorRequest(Protocol):
    """A request of any version."""

    key_type: int = _GROUP
    coordinator_keys: Sequence[str] = ()
    key: str = ""
    """Until version 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneCoordinator:
    """The response of v0-v3, which names a single coordinator."""

    throttle_time: timedelta
    error_code: ErrorCode
    error_message: str | None
    node_id: BrokerId
    host: str
    port: i32


async def handle(
    request: FindCoordinatorRequest, context: RequestContext[UsesRouting]
) -> FindCoordinatorResponse | _OneCoordinator:
    if context.api_version >= _FIRST_BATCHED_VERSION:
        return FindCoordinatorResponse(
            throttle_time=NO_THROTTLE,
            coordinators=tuple(_find(key, request.key_type, context) for key in request.coordinator_keys),
        )
    found = _find(request.key, request.key_type, context)
    return _OneCoordinator(
        throttle_time=NO_THROTTLE,
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(key: str, key_type: int, context: RequestContext[UsesRouting]) -> Coordinator:
    kind = _KINDS.get(key_type)
    if kind is None:
        return _refused(key, ErrorCode.invalid_request, f"coordinators of key type {key_type} are not served")
    if not may(Operation.DESCRIBE, _RESOURCES[key_type], key, context):
        return _refused(key, _NOT_AUTHORIZED[key_type], None)
    endpoint = coordinator_of(context, f"{kind}/{key}")
    if endpoint is None:
        return _refused(key, ErrorCode.coordinator_not_available, "no agent is a member of the cluster yet")
    return Coordinator(
        key=key,
        node_id=BrokerId(endpoint.node_id),
        host=endpoint.host,
        port=i32(endpoint.port),
        error_code=ErrorCode.none,
        error_message=None,
    )


def _refused(key: str, code: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=code, error_message=message
    )  # fmt: skip
