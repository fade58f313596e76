"""Kafka API 31, DeleteAcls, v1-v3 (KIP-140, KIP-290 prefixed patterns and MATCH). What the valid filters of a
request select is removed together. This agent decides by it before it answers, others after `acl_poll_s`.
Refused: everything, without an authorizer (SECURITY_DISABLED); filters that together name more than 10,000
ACLs (POLICY_VIOLATION).
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v3.response import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.acl_codes import acl_refusals, check_acl_access, filter_of
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesAcls, UsesAuthorizer, UsesSequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Acl, AclFilter, Operation


class _Uses(UsesAcls, UsesAuthorizer, UsesSequencer, Protocol):
    """The parts that this API uses."""


_MOST_REMOVED: Final = 10_000
"""As in Kafka. ACLs that several filters name count as often."""


async def handle(request: DeleteAclsRequest, context: RequestContext[_Uses]) -> DeleteAclsResponse:
    try:
        check_acl_access(Operation.ALTER, context)
        outcomes = [_checked(entry, context) for entry in request.filters]
        filters = [outcome for outcome in outcomes if isinstance(outcome, AclFilter)]
        async with acl_refusals():
            removed = await context.parts.sequencer.acls.remove(filters, _MOST_REMOVED)
    except ADMINISTRATION_ERRORS as error:
        return _response(_refused(error) for _ in request.filters)
    with contextlib.suppress(SequencerUnavailable):  # the next poll tries again
        await context.parts.acls.refresh()
    in_order = iter(removed)
    return _response(
        _result(next(in_order)) if isinstance(outcome, AclFilter) else outcome for outcome in outcomes
    )


def _checked(entry: DeleteAclsFilter, context: RequestContext[_Uses]) -> AclFilter | DeleteAclsFilterResult:
    try:
        return filter_of(entry, context)
    except AdministrationRefused as error:
        return _refused(error)


def _refused(error: Exception) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=administration_code(error), error_message=str(error), matching_acls=()
    )


def _result(removed: Sequence[Acl]) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=ErrorCode.none,
        error_message=None,
        matching_acls=tuple(
            DeleteAclsMatchingAcl(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=i8(acl.resource_type),
                resource_name=acl.name,
                pattern_type=i8(acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=i8(acl.operation),
                permission_type=i8(acl.permission),
            )
            for acl in removed
        ),
    )


def _response(results: Iterable[DeleteAclsFilterResult]) -> DeleteAclsResponse:
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=tuple(results))
