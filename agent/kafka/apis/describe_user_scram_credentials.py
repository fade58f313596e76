"""Kafka API 50, DescribeUserScramCredentials, v0 (KIP-554): the SCRAM mechanisms of users and their
numbers of iterations. Nothing else of a credential leaves Postgres this way.

No users named: all users. A user that has no credential gets RESOURCE_NOT_FOUND. A user that is named twice
gets DUPLICATE_RESOURCE.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32

from agent.error_codes import ADMINISTRATION_ERRORS, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.configs.administration import check_cluster_access, named_twice
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer
from sequencer.security.acl import Operation
from sequencer.security.credentials import ListedCredential, ScramMechanism


class _Uses(UsesSequencer, Protocol):
    """The parts that this API uses."""


MECHANISM_NUMBERS: Final[Mapping[ScramMechanism, int]] = {
    ScramMechanism.SHA_256: 1,
    ScramMechanism.SHA_512: 2,
}
"""The numbers are KIP-554's."""


async def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext[_Uses]
) -> DescribeUserScramCredentialsResponse:
    asked = [user.name for user in request.users or ()]
    try:
        check_cluster_access(Operation.DESCRIBE, context)
        found = await _credentials(asked, context)
    except ADMINISTRATION_ERRORS as error:
        return DescribeUserScramCredentialsResponse(
            throttle_time=NO_THROTTLE,
            error_code=administration_code(error),
            error_message=str(error),
            results=(),
        )
    repeated = named_twice(asked)
    return DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_result(user, found, repeated) for user in dict.fromkeys(asked or found)),
    )


async def _credentials(
    users: Sequence[str], context: RequestContext[_Uses]
) -> dict[str, list[ListedCredential]]:
    credentials = context.parts.sequencer.user_credentials
    listed: Iterable[ListedCredential]
    if users:
        listed = (
            ListedCredential(key=one.key, iterations=one.keys.iterations)
            for of_user in (await credentials.of(set(users))).values()
            for one in of_user
        )
    else:
        listed = await credentials.list(context.prefix)
    found: dict[str, list[ListedCredential]] = {}
    for one in filter(lambda one: context.connection.rights.reaches(one.key.user), listed):
        found.setdefault(one.key.user, []).append(one)
    return found


def _result(
    user: str, found: Mapping[str, Sequence[ListedCredential]], repeated: set[str]
) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.none, None
    if user in repeated:
        code = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif user not in found:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    shown = found.get(user, ()) if code is ErrorCode.none else ()
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=code,
        error_message=message,
        credential_infos=tuple(
            CredentialInfo(mechanism=i8(MECHANISM_NUMBERS[one.key.mechanism]), iterations=i32(one.iterations))
            for one in shown
        ),
    )
