"""What groups of the new protocol are told of the topics they subscribe to (KIP-848: the coordinator assigns)."""

from collections.abc import Iterable, Mapping

from agent.groups.events import TopicShape, TopicsSeen, TopicsWanted
from agent.topic_directory import TopicDirectory
from sequencer.topics.topics import Topic


async def look_at(directory: TopicDirectory, wanted: Iterable[TopicsWanted]) -> dict[TopicsWanted, TopicsSeen]:
    """What each wants to know of topics, by one look at all of them together. Raises SequencerUnavailable."""
    asked = set(wanted)
    everything = any(one.everything for one in asked)
    names = {name for one in asked for name in one.names}
    if everything:
        found: Mapping[str, Topic] = {topic.name: topic for topic in await directory.all()}
    else:
        found = await directory.by_name(names) if names else {}
    shapes = {
        name: TopicShape(topic_id=topic.topic_id, partition_count=topic.partition_count)
        for name, topic in found.items()
    }
    return {one: TopicsSeen(topics=_part(shapes, one), asked=one) for one in asked}


def _part(shapes: Mapping[str, TopicShape], wanted: TopicsWanted) -> Mapping[str, TopicShape]:
    if wanted.everything:
        return shapes
    return {name: shapes[name] for name in wanted.names if name in shapes}
