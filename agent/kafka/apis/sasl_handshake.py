"""Kafka API 17, SaslHandshake, v0-v1 (KIP-43, KIP-152, KIP-368): the client names its SASL mechanism.

After v1 the mechanism's messages come in SaslAuthenticate requests. After v0 they come as frames without
Kafka's header. A mechanism that the listener does not offer is answered with UNSUPPORTED_SASL_MECHANISM and
those that it offers, and the connection is closed. A client that has authenticated begins a new
authentication with it, with the same mechanism.

Refused: a handshake on a listener without SASL, and a second one within a second, get ILLEGAL_SASL_STATE.
"""

from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesAuthentication
from agent.security.sasl.session import Handshake


class _Uses(UsesAuthentication, Protocol):
    """The parts that this API uses."""


_CODES: Final = {
    Handshake.BEGUN: ErrorCode.none,
    Handshake.UNSUPPORTED: ErrorCode.unsupported_sasl_mechanism,
    Handshake.OTHER_MECHANISM: ErrorCode.illegal_sasl_state,
    Handshake.OUT_OF_TURN: ErrorCode.illegal_sasl_state,
}


async def handle(request: SaslHandshakeRequest, context: RequestContext[_Uses]) -> SaslHandshakeResponse:
    session, authentication = context.connection.sasl, context.parts.authentication
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state)
    is_offered = request.mechanism in session.mechanisms
    server = context.connection.server_name
    tenant = None if server is None else server.tenant
    login = authentication.login(request.mechanism, context.connection.host, tenant) if is_offered else None
    outcome = session.handshake(request.mechanism, login, context.received_at_s, raw=context.api_version == 0)
    return SaslHandshakeResponse(error_code=_CODES[outcome], mechanisms=session.mechanisms)
