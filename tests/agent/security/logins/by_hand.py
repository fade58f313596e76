"""A client's SASL messages by hand."""

from typing import Any

from tests.agent.read_path.wire import request
from tests.agent.running import Wire
from tests.agent.security.sasl.test_scram import Client

HANDSHAKE, VERSIONS, AUTHENTICATE = 17, 18, 36


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Any:
    return request(HANDSHAKE, version, mechanism=mechanism)


def authenticate(message: bytes, version: int = 2) -> Any:
    return request(AUTHENTICATE, version, auth_bytes=message)


def plain(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


async def log_in(wire: Wire, user: str, password: str, mechanism: str = "PLAIN", version: int = 2) -> Any:
    """Returns the last answer."""
    shaken = await wire.ask(handshake(mechanism))
    assert shaken.error_code == 0
    if mechanism == "PLAIN":
        return await wire.ask(authenticate(plain(user, password), version))
    client = Client(mechanism, user, password)  # type: ignore[arg-type]
    challenged = await wire.ask(authenticate(client.first(), version))
    return await wire.ask(authenticate(client.final(challenged.auth_bytes), version))


async def send_raw(wire: Wire, message: bytes) -> None:
    wire.writer.write(len(message).to_bytes(4, "big") + message)
    await wire.writer.drain()
