"""Kafka API 51, AlterUserScramCredentials, v0 (KIP-554): sets and deletes SCRAM credentials of users. The
client sends a salted password, so the password itself never comes here.

All changes of a request take effect at once. If one change of a user is refused, no change of that user is
made. A user may get both mechanisms in one request.

Refused: no user, a name of more than 255 bytes, less than 4,096 or more than 16,384 iterations, no salt or a
salt of more than 1,024 bytes and a salted password of a wrong length (UNACCEPTABLE_CREDENTIAL); an unknown
mechanism (UNSUPPORTED_SASL_MECHANISM); more users than the tenant may have (POLICY_VIOLATION); a credential
that is named twice (DUPLICATE_RESOURCE); the deletion of one that does not exist (RESOURCE_NOT_FOUND).
"""

from collections.abc import Iterable
from typing import Final, Protocol

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode

from agent.error_codes import ADMINISTRATION_ERRORS, AdministrationRefused, administration_code
from agent.kafka.api import NO_THROTTLE
from agent.kafka.apis.describe_user_scram_credentials import MECHANISM_NUMBERS
from agent.kafka.configs.administration import check_cluster_access, named_twice
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesSequencer
from agent.security.sasl import scram
from sequencer.security.acl import Operation
from sequencer.security.credentials import (
    LONGEST_NAME_BYTES,
    LONGEST_SALT_BYTES,
    CredentialKey,
    ScramKeys,
    ScramMechanism,
    can_be_user,
)


class _Uses(UsesSequencer, Protocol):
    """The parts that this API uses."""


_MECHANISMS: Final = {number: mechanism for mechanism, number in MECHANISM_NUMBERS.items()}
_Refusals = dict[str, AdministrationRefused]


async def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext[_Uses]
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(
        [*(one.name for one in request.deletions), *(one.name for one in request.upsertions)]
    )
    try:
        check_cluster_access(Operation.ALTER, context)
    except AdministrationRefused as refused:
        return _response(users, dict.fromkeys(users, refused))
    refusals = _refusals(request)
    refusals |= {
        user: AdministrationRefused(ErrorCode.cluster_authorization_failed, "The user belongs to a tenant")
        for user in users
        if not context.connection.rights.reaches(user)
    }
    upserted = [
        (CredentialKey(one.name, _MECHANISMS[one.mechanism]), _keys(one))
        for one in request.upsertions
        if one.name not in refusals
    ]
    deleted = [
        CredentialKey(one.name, _MECHANISMS[one.mechanism])
        for one in request.deletions
        if one.name not in refusals
    ]
    failure: Exception | None = None
    if upserted or deleted:
        try:
            missing = await context.parts.sequencer.user_credentials.alter(upserted, deleted)
        except ADMINISTRATION_ERRORS as error:
            failure = error
        else:
            for user in missing:
                refusals[user] = AdministrationRefused(
                    ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
                )
    return _response(users, refusals, failure)


def _response(
    users: Iterable[str], refusals: _Refusals, failure: Exception | None = None
) -> AlterUserScramCredentialsResponse:
    """`failure`: why no other user's change was made."""
    return AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(_result(user, refusals.get(user, failure)) for user in users),
    )


def _refusals(request: AlterUserScramCredentialsRequest) -> _Refusals:
    """Returns the users whose changes Kafka's rules refuse."""
    found: _Refusals = {}
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    for user, _ in named_twice((one.name, one.mechanism) for one in changes):
        found[user] = AdministrationRefused(
            ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
        )
    for one in changes:
        if one.name in found:
            continue
        if one.mechanism not in _MECHANISMS:
            found[one.name] = AdministrationRefused(
                ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
            )
        elif (fault := _fault(one)) is not None:
            found[one.name] = AdministrationRefused(ErrorCode.unacceptable_credential, fault)
    return found


def _fault(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> str | None:
    if not change.name:
        return "Username must not be empty"
    if not can_be_user(change.name):
        return f"Username must have at most {LONGEST_NAME_BYTES} bytes, none of them NUL"
    if not isinstance(change, ScramCredentialUpsertion):
        return None
    if change.iterations < scram.LEAST_ITERATIONS:
        return "Too few iterations"
    if change.iterations > scram.MOST_ITERATIONS:
        return "Too many iterations"
    if not 0 < len(change.salt) <= LONGEST_SALT_BYTES:
        return f"The salt must have 1 to {LONGEST_SALT_BYTES} bytes"
    if len(change.salted_password) != scram.digest_bytes(_MECHANISMS[change.mechanism]):
        return "The salted password has a wrong length"
    return None


def _keys(upsertion: ScramCredentialUpsertion) -> ScramKeys:
    mechanism: ScramMechanism = _MECHANISMS[upsertion.mechanism]
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    return scram.keys_of(mechanism, salted, salt, int(upsertion.iterations))


def _result(user: str, refused: Exception | None) -> AlterUserScramCredentialsResult:
    if refused is None:
        return AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.none, error_message=None)
    return AlterUserScramCredentialsResult(
        user=user, error_code=administration_code(refused), error_message=str(refused)
    )
