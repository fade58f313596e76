"""What a group of the new protocol writes is what the next coordinator reads."""

import json
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.consumer.consumer_members import ClassicSide, ConsumerMember
from agent.groups.consumer.consumer_roster import member_document, read_member
from agent.groups.events import Assignment, OfferedProtocol
from sequencer.groups.stored_groups import StoredMember
from storage.identifiers import Partition, TopicId

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
assignments = st.dictionaries(
    st.uuids().map(TopicId), st.frozensets(st.integers(0, 3_000).map(Partition), min_size=1), max_size=3
)
classic_sides = st.builds(
    ClassicSide,
    session_timeout_ms=st.integers(1, 10),
    protocols=st.lists(st.builds(OfferedProtocol, name=text, metadata=st.binary(max_size=9)), min_size=1).map(
        tuple
    ),
)
members = st.builds(
    ConsumerMember,
    member_id=text,
    instance_id=st.none() | text,
    rack_id=st.none() | text,
    client_id=text,
    topics=st.frozensets(text, max_size=3),
    regex=st.none() | text,
    assignor=st.none() | st.just("range"),
    epoch=st.integers(-2, 10),
    previous_epoch=st.integers(-2, 10),
    assigned=assignments,
    revoking=assignments,
    classic=st.none() | classic_sides,
)


@given(member=members, target=assignments)
def test_a_member_is_read_as_it_was_written(member: ConsumerMember, target: Assignment) -> None:
    document = member_document(member, target)

    kept = StoredMember(epoch=document.epoch, document=json.loads(json.dumps(document.document)))

    assert read_member(member.member_id, kept) == (member, target)


def test_many_partitions_take_little_room() -> None:
    assigned = {TopicId(UUID(int=1)): frozenset(map(Partition, [*range(1_000), 2_000]))}

    document = member_document(ConsumerMember(member_id="m", assigned=assigned), {})

    assert document.document["assigned"] == {UUID(int=1).hex: "0-999,2000"}
