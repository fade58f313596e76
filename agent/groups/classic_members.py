"""A member of the classic group protocol, and what the members together support (pure values).

A member is what the group knows of it between requests: who it is, what it offers and what it was assigned. Who waits
for an answer and until when a member is believed alive is the group's own (`classic.py`).
"""

from dataclasses import dataclass

from agent.groups.values import OfferedProtocol


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
    """What the leader of the current generation gave it, opaque to the broker."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """The subscription that it offers under this name; empty if it offers none."""
        return next((offered.metadata for offered in self.protocols if offered.name == protocol_name), b"")
