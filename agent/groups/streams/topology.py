"""The topology of a Kafka Streams application (KIP-1071): what its subtopologies read and write. Pure values.

Two topologies are equal if they mean the same, in whatever order a client lists their parts.

`check_topology` refuses what no application has, and what is too large. Source topics that are named by
regular expressions are refused: Kafka's brokers do not take them either.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.groups.settings import GroupSettings
from sequencer.topics.topics import InvalidTopicName, validate_topic_name

_LONGEST_ID = 249


class InvalidTopology(Exception):
    """The text says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A repartition or changelog topic, which the group creates if it is missing."""

    name: str
    partition_count: int = 0
    """0: to be derived. Always 0 for changelog topics."""
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """`copartitioned`: sets of its source topics that must have equally many partitions."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sources: tuple[InternalTopic, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    copartitioned: tuple[tuple[str, ...], ...]

    @property
    def all_sources(self) -> Iterator[str]:
        yield from self.source_topics
        for topic in self.repartition_sources:
            yield topic.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Make it with `topology_of`, which puts everything into one order."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def topics(self) -> frozenset[str]:
        """All topics that must exist before there are tasks."""
        return frozenset(
            name
            for part in self.subtopologies
            for name in (*part.all_sources, *part.repartition_sinks, *(each.name for each in part.changelogs))
        )


def topology_of(epoch: int, subtopologies: Iterable[Subtopology]) -> Topology:
    return Topology(
        epoch=epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology_id=part.subtopology_id,
                source_topics=tuple(sorted(set(part.source_topics))),
                repartition_sources=tuple(sorted(part.repartition_sources, key=lambda topic: topic.name)),
                repartition_sinks=tuple(sorted(set(part.repartition_sinks))),
                changelogs=tuple(sorted(part.changelogs, key=lambda topic: topic.name)),
                copartitioned=tuple(sorted({tuple(sorted(set(group))) for group in part.copartitioned})),
            )
            for part in sorted(subtopologies, key=lambda part: part.subtopology_id)
        ),
    )


def check_topology(topology: Topology, settings: GroupSettings, most_partitions: int) -> None:
    """Raises `InvalidTopology`. `most_partitions`: of a topic."""
    if topology.epoch < 0:
        raise InvalidTopology("The topology's epoch must not be negative.")
    most = settings.group_streams_max_topics
    named = sum(1 for part in topology.subtopologies for _ in _names(part))
    if named > most or len(topology.subtopologies) > most:
        raise InvalidTopology(
            f"The topology names more than {most} topics or subtopologies (TIDELOG_GROUP_STREAMS_MAX_TOPICS)."
        )
    if sum(map(len, _texts(topology))) > settings.group_streams_max_topology_bytes:
        raise InvalidTopology(
            f"The topology has more than {settings.group_streams_max_topology_bytes} characters "
            "(TIDELOG_GROUP_STREAMS_MAX_TOPOLOGY_BYTES)."
        )
    ids = [part.subtopology_id for part in topology.subtopologies]
    if len(set(ids)) < len(ids):
        raise InvalidTopology("Two subtopologies have the same id.")
    for part in topology.subtopologies:
        _check_part(part, most_partitions)
    _check_internal_topics(topology)


def _texts(topology: Topology) -> Iterator[str]:
    for part in topology.subtopologies:
        yield part.subtopology_id
        yield from _names(part)
        for group in part.copartitioned:
            yield from group
        for topic in (*part.repartition_sources, *part.changelogs):
            for pair in topic.config.items():
                yield from pair


def _names(part: Subtopology) -> Iterator[str]:
    yield from part.all_sources
    yield from part.repartition_sinks
    yield from (topic.name for topic in part.changelogs)


def _check_part(part: Subtopology, most_partitions: int) -> None:
    if not 0 < len(part.subtopology_id) <= _LONGEST_ID or "\0" in part.subtopology_id:
        raise InvalidTopology(
            f"The id of a subtopology must have 1 to {_LONGEST_ID} characters, none of them NUL."
        )
    sources = list(part.all_sources)
    if not sources:
        raise InvalidTopology(f"Subtopology {part.subtopology_id} has no source topics.")
    for name in _names(part):
        try:
            validate_topic_name(name)
        except InvalidTopicName as error:
            raise InvalidTopology(f"Subtopology {part.subtopology_id}: {error}") from error
    for topic in (*part.repartition_sources, *part.changelogs):
        if not 0 <= topic.partition_count <= most_partitions:
            raise InvalidTopology(
                f"Topic {topic.name} cannot have {topic.partition_count} partitions: at most "
                f"{most_partitions} are allowed (TIDELOG_MAX_PARTITIONS_PER_TOPIC)."
            )
        if any("\0" in text for pair in topic.config.items() for text in pair):
            raise InvalidTopology(f"A config of topic {topic.name} has a NUL.")
    for topic in part.changelogs:
        if topic.partition_count != 0:
            raise InvalidTopology(
                f"Changelog topic {topic.name} must not fix its number of partitions: it follows its tasks."
            )
    for group in part.copartitioned:
        if strange := set(group) - set(sources):
            raise InvalidTopology(
                f"Subtopology {part.subtopology_id} copartitions {min(strange)}, which it does not read."
            )


def _check_internal_topics(topology: Topology) -> None:
    """Each internal topic has one definition, and is no source topic of the user's."""
    internal: dict[str, InternalTopic] = {}
    for part in topology.subtopologies:
        for topic in (*part.repartition_sources, *part.changelogs):
            if internal.setdefault(topic.name, topic) != topic:
                raise InvalidTopology(f"Internal topic {topic.name} has two definitions.")
    for part in topology.subtopologies:
        for name in part.repartition_sinks:
            if name not in internal:
                raise InvalidTopology(f"No subtopology reads the repartition topic {name}.")


# --- as documents


def topology_document(topology: Topology) -> Mapping[str, Any]:
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "id": part.subtopology_id,
                "sources": part.source_topics,
                "repartition_sources": list(map(_topic_document, part.repartition_sources)),
                "repartition_sinks": part.repartition_sinks,
                "changelogs": list(map(_topic_document, part.changelogs)),
                "copartitioned": part.copartitioned,
            }
            for part in topology.subtopologies
        ],
    }


def read_topology(document: Mapping[str, Any]) -> Topology:
    return topology_of(
        document["epoch"],
        [
            Subtopology(
                subtopology_id=part["id"],
                source_topics=tuple(part["sources"]),
                repartition_sources=tuple(map(_read_topic, part["repartition_sources"])),
                repartition_sinks=tuple(part["repartition_sinks"]),
                changelogs=tuple(map(_read_topic, part["changelogs"])),
                copartitioned=tuple(tuple(group) for group in part["copartitioned"]),
            )
            for part in document["subtopologies"]
        ],
    )


def _topic_document(topic: InternalTopic) -> list[Any]:
    return [topic.name, topic.partition_count, dict(topic.config)]


def _read_topic(document: list[Any]) -> InternalTopic:
    name, partition_count, config = document
    return InternalTopic(name=name, partition_count=partition_count, config=config)
