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

from agent.security.principal import Principal
from cache_ring.peers.page_protocol import ProtocolViolation
from storage.identifiers import NodeId

PREFACE: Final = b"TIDELOG KAFKA 1\n"
ACCEPTED: Final = b"\x06"
HELLO_LENGTH_BYTES: Final = 2
_HEAD: Final = struct.Struct(">iHHH")
_LONGEST_TEXT: Final = 255
_LONGEST_PRINCIPAL: Final = 32_768


class BadHello(ProtocolViolation):
    """The other side does not speak this protocol. Close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """`client` is the address of the client whose requests follow, `host:port`. `node_id` is the agent that
    the client came to, `zone` that agent's zone. `principal` is who the client is: the other agent believes
    it, because agents have proven themselves to each other.
    """

    node_id: NodeId
    zone: str
    client: str
    principal: Principal


def encode_hello(hello: Hello) -> bytes:
    """Returns the hello with its length in front. Raises BadHello if the principal's name is too long: a part
    of it is another principal.
    """
    zone, client = (_cut(text) for text in (hello.zone, hello.client))
    principal = str(hello.principal).encode()
    if len(principal) > _LONGEST_PRINCIPAL:
        raise BadHello(f"a principal of {len(principal)} bytes cannot be passed on")
    body = _HEAD.pack(hello.node_id, len(zone), len(client), len(principal)) + zone + client + principal
    return len(body).to_bytes(HELLO_LENGTH_BYTES, "big") + body


def decode_hello(body: bytes) -> Hello:
    """Reads a hello without its length. Raises BadHello."""
    try:
        node_id, *lengths = _HEAD.unpack_from(body)
        if len(body) != _HEAD.size + sum(lengths):
            raise BadHello("the lengths in a hello do not fit its own")
        texts, start = [], _HEAD.size
        for length in lengths:
            texts.append(body[start : start + length].decode())
            start += length
        zone, client, principal = texts
        kind, colon, name = principal.partition(":")
        if not colon:
            raise BadHello("a hello without a principal")
        return Hello(node_id=NodeId(node_id), zone=zone, client=client, principal=Principal(name, kind))
    except (struct.error, UnicodeDecodeError) as error:
        raise BadHello(f"a hello that cannot be read: {error}") from error


def _cut(text: str) -> bytes:
    return text.encode()[:_LONGEST_TEXT].decode(errors="ignore").encode()
