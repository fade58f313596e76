"""The second protocol of the peer port: one agent hands a client's requests to another. Pure: bytes in,
values out.

The requesting agent opens with `PREFACE` and a `Hello` that names its client. The other agent answers
`ACCEPTED`, or hangs up. Then Kafka's own frames follow, with the client's bytes. These requests are never
forwarded again: one hop (docs/design/zones.md#forwarding).

Promise: any bytes are either a `Hello` or BadHello.
"""

import struct
from dataclasses import dataclass
from typing import Final

from cache_ring.peers.page_protocol import ProtocolViolation
from storage.identifiers import NodeId

PREFACE: Final = b"TIDELOG KAFKA 1\n"
ACCEPTED: Final = b"\x06"
HELLO_LENGTH_BYTES: Final = 2
_HEAD: Final = struct.Struct(">iHHH")
_LONGEST_TEXT: Final = 255


class BadHello(ProtocolViolation):
    """The other side does not speak this protocol. Close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`client` is the address of the client whose requests follow, `host:port`. `node_id` is the agent that
    the client came to, `zone` that agent's zone. `user`: the principal's name, as that agent has
    authenticated it.
    """

    node_id: NodeId
    zone: str
    client: str
    user: str


def encode_hello(hello: Hello) -> bytes:
    """Returns the hello with its length in front."""
    zone, client = (_cut(text) for text in (hello.zone, hello.client))
    user = hello.user.encode()  # never cut: it would be another user
    body = _HEAD.pack(hello.node_id, len(zone), len(client), len(user)) + zone + client + user
    return len(body).to_bytes(HELLO_LENGTH_BYTES, "big") + body


def decode_hello(body: bytes) -> Hello:
    """Reads a hello without its length. Raises BadHello."""
    try:
        node_id, zone_length, client_length, user_length = _HEAD.unpack_from(body)
        zone_end = _HEAD.size + zone_length
        client_end = zone_end + client_length
        if len(body) != client_end + user_length:
            raise BadHello("the lengths in a hello do not fit its own")
        return Hello(
            node_id=NodeId(node_id),
            zone=body[_HEAD.size : zone_end].decode(),
            client=body[zone_end:client_end].decode(),
            user=body[client_end:].decode(),
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise BadHello(f"a hello that cannot be read: {error}") from error


def _cut(text: str) -> bytes:
    return text.encode()[:_LONGEST_TEXT].decode(errors="ignore").encode()
