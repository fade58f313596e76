"""Kafka API 29, DescribeAcls, v1-v3 (KIP-140, KIP-290 prefixed patterns). Answers from Postgres, so it shows
every change that was acknowledged before. Refused: everything, without an authorizer (SECURITY_DISABLED).
"""

from collections.abc import Iterable
from typing import Final, Protocol

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import AclDescription, DescribeAclsResource, DescribeAclsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.acl_codes import acl_refusals, check_acl_access, filter_of
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesAuthorizer, UsesResponseMemory, UsesSequencer
from sequencer.security.acl import Acl, Operation, PatternType, ResourceType


class _Uses(UsesAuthorizer, UsesResponseMemory, UsesSequencer, Protocol):
    """The parts that this API uses."""


_ACL_BYTES: Final = 64


async def handle(request: DescribeAclsRequest, context: RequestContext[_Uses]) -> DescribeAclsResponse:
    try:
        check_acl_access(Operation.DESCRIBE, context)
        authorizer = context.parts.authorizer
        async with acl_refusals():
            found = await context.parts.sequencer.acls.matching(
                filter_of(request, context), authorizer.settings.max_acls, authorizer.settings.acl_page
            )
    except ADMINISTRATION_ERRORS as error:
        return DescribeAclsResponse(
            throttle_time=NO_THROTTLE,
            error_code=administration_code(error),
            error_message=str(error),
            resources=(),
        )
    size_bytes = sum(_ACL_BYTES + len(acl.name) + len(acl.principal) + len(acl.host) for acl in found)
    await context.parts.response_memory.reserve(size_bytes, context)
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        resources=_by_resource(found),
    )


def _by_resource(acls: Iterable[Acl]) -> tuple[DescribeAclsResource, ...]:
    resources: dict[tuple[ResourceType, str, PatternType], list[AclDescription]] = {}
    for acl in acls:
        resources.setdefault((acl.resource_type, acl.name, acl.pattern_type), []).append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=i8(acl.operation),
                permission_type=i8(acl.permission),
            )
        )
    return tuple(
        DescribeAclsResource(
            resource_type=i8(resource_type), resource_name=name, pattern_type=i8(pattern), acls=tuple(entries)
        )
        for (resource_type, name, pattern), entries in resources.items()
    )
