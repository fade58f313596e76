"""Kafka API 30, CreateAcls, v1-v3 (KIP-140, KIP-290 prefixed patterns). The valid ones of a request are added
together. Adding what is there changes nothing. This agent decides by them before it answers, others after
`acl_poll_s`. Refused: everything, without an authorizer (SECURITY_DISABLED); names, principals and hosts of
more than 1,024 characters; more ACLs than `max_acls`, or than the tenant may have (POLICY_VIOLATION).
"""

import contextlib
from collections.abc import Iterable
from typing import Protocol

from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.acl_codes import acl_of, acl_refusals, check_acl_access
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesAcls, UsesAuthorizer, UsesSequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Acl, Operation
from sequencer.security.acls import check_acl


class _Uses(UsesAcls, UsesAuthorizer, UsesSequencer, Protocol):
    """The parts that this API uses."""


_ADDED = AclCreationResult(error_code=ErrorCode.none, error_message=None)


async def handle(request: CreateAclsRequest, context: RequestContext[_Uses]) -> CreateAclsResponse:
    try:
        check_acl_access(Operation.ALTER, context)
        outcomes = [await _checked(entry, context) for entry in request.creations]
        acls = [outcome for outcome in outcomes if isinstance(outcome, Acl)]
        added = await _add(acls, context)
    except ADMINISTRATION_ERRORS as error:
        return _response(_refused(error) for _ in request.creations)
    return _response(added if isinstance(outcome, Acl) else outcome for outcome in outcomes)


async def _checked(entry: AclCreation, context: RequestContext[_Uses]) -> Acl | AclCreationResult:
    try:
        async with acl_refusals():
            acl = acl_of(entry, context)
            check_acl(acl)
            return acl
    except AdministrationRefused as error:
        return _refused(error)


async def _add(acls: list[Acl], context: RequestContext[_Uses]) -> AclCreationResult:
    """Returns the result of each of them."""
    try:
        async with acl_refusals():
            await context.parts.sequencer.acls.add(acls, context.parts.authorizer.settings.max_acls)
    except ADMINISTRATION_ERRORS as error:
        return _refused(error)
    with contextlib.suppress(SequencerUnavailable):  # the next poll tries again
        await context.parts.acls.refresh()
    return _ADDED


def _refused(error: Exception) -> AclCreationResult:
    return AclCreationResult(error_code=administration_code(error), error_message=str(error))


def _response(results: Iterable[AclCreationResult]) -> CreateAclsResponse:
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
