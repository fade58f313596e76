"""The members of a classic group, and the protocols that they share.

A member is what the group knows of it between requests: who it is, what it offers and what it was assigned.
`classic_rounds.py` knows who waits for an answer, and until when a member counts as alive.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from agent.groups.events import OfferedProtocol
from agent.kafka.transport.request_shape import ImpossibleShape, check_shape

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_SUBSCRIPTION_VERSION: Final = struct.Struct(">h")
_read_subscription: Final = entity_reader(ConsumerProtocolSubscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    """Static membership (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[OfferedProtocol, ...]
    """In the member's order of preference."""
    assignment: bytes = b""
    """The last assignment from a leader, opaque to the broker. It stays until the next leader assigns."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """Returns the subscription that it offers under this name. Empty if it offers none."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol_name), b"")


class ClassicRoster:
    """The members in the order in which they came. All share at least one protocol: a member without a shared
    one is not let in (`supports`).
    """

    def __init__(self) -> None:
        self._members: dict[str, ClassicMember] = {}
        self._instances: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self._touched: set[str] = set()

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._members[member_id]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(tuple(self._members.values()))

    @property
    def by_id(self) -> Mapping[str, ClassicMember]:
        return MappingProxyType(self._members)

    def put(self, member: ClassicMember) -> None:
        """Adds a member, or replaces what is known of it."""
        known = self._members.get(member.member_id)
        if known is not None:
            self._supporters.subtract(_names(known.protocols))
        self._supporters.update(_names(member.protocols))
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._touched.add(member.member_id)

    def remove(self, member_id: str) -> None:
        member = self._members.pop(member_id)
        self._supporters.subtract(_names(member.protocols))
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]
        self._touched.add(member_id)

    def of_instance(self, instance_id: str) -> str | None:
        """Returns the member id that this instance has now."""
        return self._instances.get(instance_id)

    @property
    def touched(self) -> Set[str]:
        """The ids of members that came, changed or went since `settle`."""
        return self._touched

    def settle(self, member_ids: Iterable[str]) -> None:
        self._touched.difference_update(member_ids)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Returns the time that the slowest member may take to rejoin."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def supports(self, protocols: Iterable[OfferedProtocol]) -> bool:
        """True if every member supports at least one of these."""
        return any(self._supporters[offered.name] == len(self._members) for offered in protocols)

    def vote(self) -> str:
        """Each member votes for the first of its protocols that all support. Equal votes are settled by name,
        so the order of members does not matter. There must be a member.
        """
        votes = Counter(
            next(
                offered.name
                for offered in member.protocols
                if self._supporters[offered.name] == len(self._members)
            )
            for member in self._members.values()
        )
        return min(votes, key=lambda name: (-votes[name], name))

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """Returns the topics that consumers subscribe to under this protocol. None if one subscription cannot
        be read.
        """
        topics: set[str] = set()
        for member in self._members.values():
            subscribed = subscribed_topics(member.metadata(protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Returns the topics of a consumer's subscription. None: the bytes are not a subscription. Every version
    begins as version 0 does.
    """
    try:
        check_shape(metadata, _SUBSCRIPTION_VERSION.size, ConsumerProtocolSubscription)
        read, _ = _read_subscription(memoryview(metadata), _SUBSCRIPTION_VERSION.size)
    except (ImpossibleShape, SerialError, ValueError):  # the last of a negative length
        return None
    return frozenset(read.topics)


def _names(protocols: Iterable[OfferedProtocol]) -> set[str]:
    return {offered.name for offered in protocols}
