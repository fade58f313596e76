"""A group's members as the other protocol sees them (KIP-848, online migration). Pure.

Promises that a conversion forgets no partition that a member may still be consuming from: what a classic member was
assigned and what it said it still had count both, and what a member of the new protocol is giving up counts as assigned
to it in the classic one.
"""

from collections.abc import Iterable

from agent.groups.classic.classic_members import ClassicMember
from agent.groups.consumer.assignments import NOTHING, chosen, partitions_of, united, without
from agent.groups.consumer.consumer_members import ClassicSide, ConsumerMember
from agent.groups.consumer.consumer_protocol import (
    Malformed,
    by_id,
    by_name,
    read_assignment,
    read_subscription,
    write_assignment,
)
from agent.groups.consumer.known_topics import KnownTopics
from agent.groups.events import Assignment, TopicsWanted
from storage.identifiers import Partition, TopicId


class CannotConvert(Exception):
    """The members' bytes are not those of consumers, or would lose what a custom assignor put into them."""


def topics_to_convert(members: Iterable[ClassicMember]) -> TopicsWanted:
    """Raises `CannotConvert`."""
    names: set[str] = set()
    try:
        for member in members:
            subscription = read_subscription(member.protocols[0].metadata)
            assignment = read_assignment(member.assignment)
            if assignment.user_data:
                raise CannotConvert("a custom assignor's user data would be lost")
            names |= subscription.topics | subscription.owned.keys() | assignment.partitions.keys()
    except Malformed as error:
        raise CannotConvert("a member's bytes are not of the consumer protocol") from error
    return TopicsWanted(names=frozenset(names))


def as_consumer_members(
    members: Iterable[ClassicMember], generation: int, *, is_stable: bool, topics: KnownTopics
) -> list[tuple[ConsumerMember, Assignment]]:
    """Each member with its target: what it has. `is_stable`: the leader's assignment is everybody's, and a cooperative
    member that had more is giving that up; otherwise members have what they said when they rejoined. Where two claim a
    partition, the assignment decides, then the order of the members. `topics_to_convert` must be known."""
    taken: set[tuple[TopicId, Partition]] = set()

    def claim(claimed: Assignment) -> Assignment:
        mine = chosen(claimed, lambda topic, partition: (topic, partition) not in taken)
        taken.update(partitions_of(mine))
        return mine

    listed = list(members)
    assigned = {
        member.member_id: claim(by_id(read_assignment(member.assignment).partitions, topics.id_of)) for member in listed
    }
    converted = []
    for member in listed:
        subscription = read_subscription(member.protocols[0].metadata)
        mine = assigned[member.member_id]
        more = claim(without(by_id(subscription.owned, topics.id_of), mine))
        new = ConsumerMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=subscription.topics,
            epoch=generation,
            previous_epoch=generation,
            assigned=mine if is_stable else united(mine, more),
            revoking=more if is_stable else NOTHING,
            classic=ClassicSide(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
        )
        converted.append((new, new.assigned))
    return converted


def as_classic_members(members: Iterable[ConsumerMember], topics: KnownTopics) -> list[ClassicMember]:
    """Those that speak the classic protocol."""
    return [
        ClassicMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.classic.protocols,
            assignment=write_assignment(
                by_name(member.owned, topics.name_of), like=member.classic.protocols[0].metadata
            ),
        )
        for member in members
        if member.classic is not None
    ]
