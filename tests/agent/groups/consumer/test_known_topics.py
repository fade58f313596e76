"""What a group knows of topics is limited to its members' subscriptions."""

from uuid import UUID

from agent.groups.consumer.consumer_members import ConsumerMember
from agent.groups.consumer.known_topics import KnownTopics
from agent.groups.events import TopicShape, TopicsSeen, TopicsWanted
from storage.identifiers import TopicId

ORDERS = TopicShape(topic_id=TopicId(UUID(int=1)), partition_count=3)


def test_subscriptions_without_members_are_forgotten() -> None:
    topics = KnownTopics()
    topics.see(TopicsSeen(topics={"orders": ORDERS}, asked=TopicsWanted(everything=True)))

    for number in range(100):
        fickle = ConsumerMember(
            member_id="ann", topics=frozenset({f"topic-{number}"}), regex=f"ord.*|{number}"
        )
        topics.fingerprint([fickle])
        assert topics.subscribed_ids(fickle) == {ORDERS.topic_id}

    assert len(topics._matched) == 1
    assert len(topics._subscribed) <= 2
