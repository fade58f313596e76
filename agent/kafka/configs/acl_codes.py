"""ACLs and their filters in requests and responses: Kafka's codes, which the sequencer's enumerations share.

Unlike Kafka, a code that no type, pattern, operation or permission has refuses its entry with
INVALID_REQUEST. Kafka closes the connection.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.kafka.configs.administration import check_cluster_access
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesAuthorizer
from sequencer.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from sequencer.security.acls import InvalidAcl, TooManyAcls

_ANY: Final = 1
_MATCH: Final = 2

_Code = TypeVar("_Code", bound=IntEnum)


class AclEntry(Protocol):
    """An entry of CreateAcls."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def resource_pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class AclFilterEntry(Protocol):
    """The filter of DescribeAcls, or an entry of DeleteAcls."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def check_acl_access(operation: Operation, context: RequestContext[UsesAuthorizer]) -> None:
    """Raises AdministrationRefused if the client may not do this with ACLs, or if ACLs decide nothing."""
    check_cluster_access(operation, context)
    if not context.parts.authorizer.is_on:
        raise AdministrationRefused(ErrorCode.security_disabled, "No Authorizer is configured.")


def acl_of(entry: AclEntry, context: RequestContext[UsesAuthorizer]) -> Acl:
    """Raises AdministrationRefused."""
    if not context.connection.rights.reaches(entry.resource_name):
        raise AdministrationRefused(
            ErrorCode.cluster_authorization_failed, "The resource belongs to a tenant."
        )
    return Acl(
        resource_type=_code(ResourceType, entry.resource_type, "resourceType"),
        pattern_type=_code(PatternType, entry.resource_pattern_type, "patternType"),
        name=entry.resource_name,
        principal=entry.principal,
        host=entry.host,
        operation=_code(Operation, entry.operation, "operation"),
        permission=_code(Permission, entry.permission_type, "permissionType"),
    )


def filter_of(entry: AclFilterEntry, context: RequestContext[Any]) -> AclFilter:
    """Returns what the entry selects of the ACLs that the client may know. Raises AdministrationRefused."""
    pattern = entry.pattern_type_filter
    return AclFilter(
        resource_type=_code_or_any(ResourceType, entry.resource_type_filter, "resourceType"),
        pattern_type=None if pattern == _MATCH else _code_or_any(PatternType, pattern, "patternType"),
        matches_name=pattern == _MATCH,
        name=entry.resource_name_filter,
        principal=entry.principal_filter,
        host=entry.host_filter,
        operation=_code_or_any(Operation, entry.operation, "operation"),
        permission=_code_or_any(Permission, entry.permission_type, "permissionType"),
        within=_within(context),
    )


def _within(context: RequestContext[Any]) -> str | None:
    if context.tenant is not None:
        return context.tenant.prefix
    return "" if context.connection.rights.is_unrestricted else None


@asynccontextmanager
async def acl_refusals() -> AsyncIterator[None]:
    """Raises AdministrationRefused for what the sequencer refuses."""
    try:
        yield
    except InvalidAcl as error:
        raise AdministrationRefused(ErrorCode.invalid_request, str(error)) from error
    except TooManyAcls as error:
        raise AdministrationRefused(ErrorCode.policy_violation, str(error)) from error


def _code_or_any(codes: type[_Code], value: int, name: str) -> _Code | None:
    return None if value == _ANY else _code(codes, value, name)


def _code(codes: type[_Code], value: int, name: str) -> _Code:
    try:
        return codes(value)
    except ValueError:
        raise AdministrationRefused(ErrorCode.invalid_request, f"Invalid {name} {value}") from None
