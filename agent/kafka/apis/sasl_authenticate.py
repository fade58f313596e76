"""Kafka API 36, SaslAuthenticate, v0-v2 (KIP-152, KIP-368): one message of the client's SASL mechanism, and
the answer to it.

From v1 on the last answer says how long the session lasts, if it ends. A failed login gets
SASL_AUTHENTICATION_FAILED with a text that does not tell a wrong password from an unknown user. The answer
waits, longer with each failure from the same host, and then the connection is closed. If Postgres or the
identity provider cannot be asked, the connection is closed without an answer, so that the client tries again.

Refused: a message without a SaslHandshake before it gets ILLEGAL_SASL_STATE.
"""

import asyncio
from datetime import timedelta
from typing import Protocol

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.static.primitive import i64Timedelta

from agent.kafka.api import CloseConnection
from agent.kafka.context import RequestContext
from agent.kafka.dispatch import RAW_VERSION
from agent.kafka.uses import UsesAuthentication
from agent.security.principal import Principal
from agent.security.sasl.session import SaslSession
from agent.security.sasl.steps import CannotCheck, Challenge, Proven, SaslRefused


class _Uses(UsesAuthentication, Protocol):
    """The parts that this API uses."""


async def handle(
    request: SaslAuthenticateRequest, context: RequestContext[_Uses]
) -> SaslAuthenticateResponse:
    session = context.connection.sasl
    if session is None or session.exchange is None:
        return _refused(
            ErrorCode.illegal_sasl_state, "SaslAuthenticate came without a SaslHandshake before it"
        )
    try:
        step = await session.exchange.step(bytes(request.auth_bytes))
        return _stepped(step, session, context)
    except CannotCheck as error:
        session.fail()
        raise CloseConnection(f"the login cannot be checked now: {error}") from error
    except SaslRefused as refused:
        session.fail()
        mechanism = session.mechanism or ""
        delay_s = context.parts.authentication.note_failure(context.connection, mechanism, refused)
    # The wait is outside the `except`: a caught exception keeps what the failed step had in memory.
    await asyncio.sleep(delay_s)
    if context.api_version == RAW_VERSION:
        raise CloseConnection("the login failed")
    return _refused(
        ErrorCode.sasl_authentication_failed,
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}",
    )


def _stepped(
    step: Challenge | Proven, session: SaslSession, context: RequestContext[_Uses]
) -> SaslAuthenticateResponse:
    if isinstance(step, Challenge):
        return SaslAuthenticateResponse(error_code=ErrorCode.none, error_message=None, auth_bytes=step.data)
    principal, now_s = Principal(step.user), asyncio.get_running_loop().time()
    is_again = session.principal is not None
    if not session.succeed(principal, step.credential, step.token_s, now_s):
        raise SaslRefused("the client authenticates again as another principal", step.user)
    context.connection.principal = principal
    context.parts.authentication.note_success(context.connection, session.mechanism or "", is_again=is_again)
    return SaslAuthenticateResponse(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=step.data,
        session_lifetime=i64Timedelta.parse(timedelta(milliseconds=int(session.lifetime_s(now_s) * 1000))),
    )


def _refused(code: ErrorCode, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"")
