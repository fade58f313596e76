"""Subscriptions of classic consumers, as bytes of the wire and as text of a transcript.

`orders+clicks` are two topics. `orders@x` carries user data. `!junk` is no subscription but these bytes.
"""

import io
import struct

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

_VERSION = struct.Struct(">h")


def subscription(text: str) -> bytes:
    if text.startswith("!"):
        return text.encode()
    topics, _, user_data = text.partition("@")
    buffer = io.BytesIO()
    buffer.write(_VERSION.pack(0))
    entity_writer(ConsumerProtocolSubscription)(
        buffer,
        ConsumerProtocolSubscription(
            topics=tuple(topic for topic in topics.split("+") if topic), user_data=user_data.encode() or None
        ),
    )
    return buffer.getvalue()


def subscription_text(metadata: bytes) -> str:
    try:
        read, _ = entity_reader(ConsumerProtocolSubscription)(memoryview(metadata), _VERSION.size)
    except SerialError:
        return metadata.decode()
    return "+".join(read.topics) + (f"@{read.user_data.decode()}" if read.user_data else "")
