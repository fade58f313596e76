"""What the group coordinator refuses, as Kafka's error codes: the part of `agent/error_codes.py` that is of groups.

Each API's clients expect their own few codes, and some take an unexpected one as final; hence the exceptions per API,
which are Kafka's own.
"""

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from agent.groups.events import GroupFault

_CODES: Final[Mapping[GroupFault, ErrorCode]] = {
    GroupFault.UNKNOWN_MEMBER: ErrorCode.unknown_member_id,
    GroupFault.MEMBER_ID_REQUIRED: ErrorCode.member_id_required,
    GroupFault.ILLEGAL_GENERATION: ErrorCode.illegal_generation,
    GroupFault.REBALANCE_IN_PROGRESS: ErrorCode.rebalance_in_progress,
    GroupFault.INCONSISTENT_PROTOCOL: ErrorCode.inconsistent_group_protocol,
    GroupFault.INVALID_SESSION_TIMEOUT: ErrorCode.invalid_session_timeout,
    GroupFault.GROUP_FULL: ErrorCode.group_max_size_reached,
    GroupFault.FENCED_INSTANCE: ErrorCode.fenced_instance_id,
    GroupFault.FENCED_MEMBER_EPOCH: ErrorCode.fenced_member_epoch,
    GroupFault.STALE_MEMBER_EPOCH: ErrorCode.stale_member_epoch,
    GroupFault.UNRELEASED_INSTANCE: ErrorCode.unreleased_instance_id,
    GroupFault.UNSUPPORTED_ASSIGNOR: ErrorCode.unsupported_assignor,
    GroupFault.INVALID_REGEX: ErrorCode.invalid_regular_expression,
    GroupFault.INVALID_REQUEST: ErrorCode.invalid_request,
    GroupFault.INVALID_GROUP: ErrorCode.invalid_group_id,
    GroupFault.GROUP_NOT_FOUND: ErrorCode.group_id_not_found,
    GroupFault.GROUP_NOT_EMPTY: ErrorCode.non_empty_group,
    GroupFault.SUBSCRIBED_TO_TOPIC: ErrorCode.group_subscribed_to_topic,
    GroupFault.NOT_COORDINATOR: ErrorCode.not_coordinator,
    GroupFault.COORDINATOR_UNAVAILABLE: ErrorCode.coordinator_not_available,
    GroupFault.OVERLOADED: ErrorCode.coordinator_load_in_progress,
}


def group_code(fault: GroupFault | None) -> ErrorCode:
    return ErrorCode.none if fault is None else _CODES[fault]


def member_code(fault: GroupFault | None) -> ErrorCode:
    """For JoinGroup and LeaveGroup: in a group that does not exist, nobody is a member."""
    return ErrorCode.unknown_member_id if fault is GroupFault.GROUP_NOT_FOUND else group_code(fault)


def sync_code(fault: GroupFault | None) -> ErrorCode:
    """For SyncGroup, whose clients give up on a coordinator that is loading: they are sent back to JoinGroup."""
    return ErrorCode.rebalance_in_progress if fault is GroupFault.OVERLOADED else member_code(fault)


def heartbeat_code(fault: GroupFault | None) -> ErrorCode:
    """For Heartbeat, whose clients do not know a coordinator that is loading either: the next one may tell more."""
    return ErrorCode.none if fault is GroupFault.OVERLOADED else member_code(fault)


def commit_code(fault: GroupFault | None, *, says_group_not_found: bool) -> ErrorCode:
    """For OffsetCommit. `says_group_not_found`: from version 9 on."""
    if fault is GroupFault.GROUP_NOT_FOUND and not says_group_not_found:
        return ErrorCode.illegal_generation
    return group_code(fault)


def fetch_code(fault: GroupFault | None) -> ErrorCode:
    """For OffsetFetch, whose older clients give up on a coordinator that is not available, and wait for one that is
    loading."""
    if fault is GroupFault.COORDINATOR_UNAVAILABLE:
        return ErrorCode.coordinator_load_in_progress
    return group_code(fault)
