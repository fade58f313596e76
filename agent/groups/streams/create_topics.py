"""Creates the internal topics that a streams group misses (KIP-1071)."""

import logging
from collections.abc import Iterable, Mapping

from agent.groups.streams.topology import InternalTopic
from agent.topic_directory import TopicDirectory
from sequencer.topics.config_checks import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount, InvalidTopicName, TopicExists

log = logging.getLogger("tidelog")


async def create_topics(
    directory: TopicDirectory, topics: Iterable[InternalTopic], *, group_id: str
) -> Mapping[str, str]:
    """Returns why topics could not be created, by their names. A topic that exists by now is no failure.
    Raises SequencerUnavailable, CommitOutcomeUnknown.
    """
    refused: dict[str, str] = {}
    for topic in topics:
        fields = {"group": group_id, "topic": topic.name}
        try:
            await directory.create(topic.name, topic.partition_count, topic.config)
            log.info("internal topic created", extra=fields | {"partitions": topic.partition_count})
        except TopicExists:
            continue
        except (InvalidConfig, InvalidTopicName, InvalidPartitionCount) as error:
            refused[topic.name] = str(error)
            log.warning("internal topic cannot be created", extra=fields | {"error": str(error)})
    return refused
