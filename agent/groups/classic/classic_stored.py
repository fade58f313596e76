"""A classic group in Postgres: its documents, and what has to be written of it. Bytes are base64, as JSON has none.

What must be in Postgres before answers go out: each new state with its generation, so that one who takes over begins an
interrupted rebalance again and no generation is given out twice; the members when a generation is assigned and when a
static member is replaced; and whenever the state is written, that those who left are gone.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection

from agent.groups.classic.classic_members import ClassicMember
from agent.groups.classic.classic_rounds import Rounds
from agent.groups.events import GroupState, OfferedProtocol
from sequencer.groups.stored_groups import GroupChange, StoredGroup, StoredMember


class WrittenGroup:
    """What Postgres has of a group once all changes taken so far are written."""

    def __init__(self, stored: StoredGroup | None) -> None:
        self._state = (GroupState.EMPTY.value, 0, "")
        """State, generation and protocol type."""
        if stored is not None:
            self._state = (stored.state, stored.generation, stored.protocol_type)
        self.member_ids = frozenset(stored.members if stored is not None else ())
        self._members_due = False
        """Members are to be written although the state is not new."""

    def write_members(self) -> None:
        """The next change has the members that changed, whatever the state."""
        self._members_due = True

    def replace_members(self, member_ids: Collection[str]) -> None:
        """Postgres has these members, of the group in its other protocol: the next change writes the group's own and
        deletes the rest."""
        self.member_ids = frozenset(member_ids)
        self._members_due = True

    def take_changes(self, rounds: Rounds) -> GroupChange | None:
        roster = rounds.roster
        state = (rounds.state.value, rounds.generation, rounds.protocol_type)
        if state == self._state and not self._members_due:
            return None
        members: dict[str, StoredMember | None] = dict.fromkeys(sorted(self.member_ids - roster.by_id.keys()))
        if rounds.state is GroupState.STABLE or self._members_due:
            members |= {
                member.member_id: stored_member(member, rounds.generation)
                for member in roster
                if member.member_id in roster.touched
            }
        roster.settle(members)
        self.member_ids = frozenset(member_id for member_id in self.member_ids | members.keys() if member_id in roster)
        self._state = state
        self._members_due = False
        return GroupChange(
            kind="classic",
            generation=rounds.generation,
            state=rounds.state.value,
            protocol_type=rounds.protocol_type,
            document={"protocol_name": rounds.protocol_name, "leader": rounds.leader},
            members=members,
            is_empty=not len(roster),
        )


def stored_member(member: ClassicMember, generation: int) -> StoredMember:
    return StoredMember(
        epoch=generation,
        document={
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "protocols": [[offered.name, _text(offered.metadata)] for offered in member.protocols],
            "assignment": _text(member.assignment),
        },
    )


def restored_member(member_id: str, stored: StoredMember) -> ClassicMember:
    document = stored.document
    return ClassicMember(
        member_id=member_id,
        instance_id=document["instance_id"],
        client_id=document["client_id"],
        client_host=document["client_host"],
        session_timeout_ms=document["session_timeout_ms"],
        rebalance_timeout_ms=document["rebalance_timeout_ms"],
        protocols=tuple(
            OfferedProtocol(name=name, metadata=b64decode(metadata)) for name, metadata in document["protocols"]
        ),
        assignment=b64decode(document["assignment"]),
    )


def _text(content: bytes) -> str:
    return b64encode(content).decode("ascii")
