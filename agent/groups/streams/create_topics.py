"""Creates the internal topics that a streams group misses (KIP-1071)."""

import logging
from collections.abc import Callable, Iterable, Mapping

from agent.groups.streams.topic_plan import listed
from agent.groups.streams.topology import InternalTopic
from agent.tenants.local_topics import GroupTopics
from sequencer.tenants.tenant_limits import TenantLimitReached
from sequencer.topics.config_checks import InvalidConfig
from sequencer.topics.topics import InvalidPartitionCount, InvalidTopicName, TopicExists

log = logging.getLogger("tidelog")


async def create_topics(
    directory: GroupTopics,
    topics: Iterable[InternalTopic],
    *,
    group_id: str,
    created_one: Callable[[InternalTopic], None],
) -> Mapping[str, str]:
    """Returns why topics could not be created, by their names. A topic that exists by now is no failure.
    `created_one` hears of each that was created. Raises SequencerUnavailable, CommitOutcomeUnknown.
    """
    created: list[str] = []
    refused: dict[str, str] = {}
    for topic in topics:
        try:
            await directory.create(topic.name, topic.partition_count, topic.config)
            created_one(topic)
            created.append(f"{topic.name} ({topic.partition_count})")
        except TopicExists:
            continue
        except (InvalidConfig, InvalidTopicName, InvalidPartitionCount, TenantLimitReached) as error:
            refused[topic.name] = str(error)
    fields = {"group": group_id, "topics": listed(created)}
    if refused:
        errors = listed([f"{name}: {why}" for name, why in refused.items()], "; ")
        log.warning("internal topics cannot be created", extra=fields | {"refused": errors})
    elif created:
        log.info("internal topics created", extra=fields)
    return refused
