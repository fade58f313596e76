"""What a topology needs of topics (KIP-1071): how many tasks each subtopology has, which internal topics are
missing and with how many partitions, or why there can be no tasks yet. Pure.

Partitions are counted as Kafka Streams does, so an application that had a classic group finds its topics
as they should be:

- A repartition topic has the count that the application fixed. Otherwise it has that of the widest topic
  that the subtopologies writing to it read.
- Copartitioned topics have equally many partitions. Repartition topics without a fixed count adapt to the
  others.
- A subtopology has as many tasks, and its changelogs as many partitions, as its widest source has partitions.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from agent.groups.events import Status, StatusCode, TopicShape
from agent.groups.streams.topology import InternalTopic, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    task_counts: Mapping[str, int] = field(default_factory=dict)
    """By subtopology. Empty if there can be no tasks yet (`problem`)."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """Of all topics of the topology, existing or to be created. Empty if they cannot be known."""
    missing: tuple[InternalTopic, ...] = ()
    """The internal topics to create. Their partition counts are set."""
    problem: Status | None = None


_MOST_LISTED = 20
"""Each answer to each member carries the text."""


def listed(parts: Sequence[str], separator: str = ", ") -> str:
    """Returns the first few of these as a text."""
    more = len(parts) - _MOST_LISTED
    text = separator.join(parts[:_MOST_LISTED])
    return f"{text}{separator}and {more} more" if more > 0 else text


class _Unplannable(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code=code, detail=detail)


def plan_topics(topology: Topology, shapes: Mapping[str, TopicShape], *, most_tasks: int) -> TopicPlan:
    """`shapes`: the existing topics among those of the topology. `most_tasks` limits the tasks of the group,
    and the partitions of all its internal topics.
    """
    try:
        counts = _source_counts(topology, shapes)
        return _planned(topology, shapes, counts, most_tasks)
    except _Unplannable as error:
        return TopicPlan(problem=error.status)


def _planned(
    topology: Topology, shapes: Mapping[str, TopicShape], counts: dict[str, int], most_tasks: int
) -> TopicPlan:
    tasks = {
        part.subtopology_id: max(counts[name] for name in part.all_sources) for part in topology.subtopologies
    }
    for part in topology.subtopologies:
        for topic in part.changelogs:
            counts[topic.name] = max(counts.get(topic.name, 0), tasks[part.subtopology_id])
    internal = {
        topic.name: topic
        for part in topology.subtopologies
        for topic in (*part.repartition_sources, *part.changelogs)
    }
    if sum(tasks.values()) > most_tasks or sum(counts[name] for name in internal) > most_tasks:
        raise _Unplannable(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"The topology needs more than {most_tasks} tasks or internal partitions "
            "(TIDELOG_GROUP_STREAMS_MAX_TASKS).",
        )
    for name in sorted(internal):
        if name in shapes and shapes[name].partition_count != counts[name]:
            raise _Unplannable(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Internal topic {name} has {shapes[name].partition_count} partitions. "
                f"The topology needs {counts[name]}.",
            )
    missing = tuple(
        InternalTopic(name=name, partition_count=counts[name], config=internal[name].config)
        for name in sorted(internal)
        if name not in shapes
    )
    if missing:
        names = listed([topic.name for topic in missing])
        status = Status(
            code=StatusCode.MISSING_INTERNAL_TOPICS, detail=f"Internal topics are missing: {names}."
        )
        return TopicPlan(partition_counts=counts, missing=missing, problem=status)
    return TopicPlan(task_counts=tasks, partition_counts=counts)


# --- partitions of source topics


def _source_counts(topology: Topology, shapes: Mapping[str, TopicShape]) -> dict[str, int]:
    """Raises `_Unplannable`."""
    repartition = {topic.name: topic for part in topology.subtopologies for topic in part.repartition_sources}
    users = {
        name for part in topology.subtopologies for name in part.source_topics if name not in repartition
    }
    if missing := sorted(users - shapes.keys()):
        raise _Unplannable(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics are missing: {listed(missing)}.")
    counts = {name: shapes[name].partition_count for name in users}
    counts |= {name: topic.partition_count for name, topic in repartition.items() if topic.partition_count}
    _derive(topology, repartition, counts)
    fixed = users | {name for name, topic in repartition.items() if topic.partition_count}
    for part in topology.subtopologies:
        for group in part.copartitioned:
            _copartition(group, fixed, counts)
    return counts


def _derive(topology: Topology, repartition: Mapping[str, InternalTopic], counts: dict[str, int]) -> None:
    """Derives the counts of repartition topics from what is written to them. A topic waits until all that its
    writers read is known. In a loop of topics, what is known must do.
    """
    flow = _Flow(topology, repartition.keys() - counts.keys(), counts)
    while flow.waiting:
        found = flow.clear() or flow.in_loops()
        if not found:
            raise _Unplannable(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"The partitions of repartition topics cannot be derived: {listed(sorted(flow.waiting))}. "
                "No subtopology writes to them that reads a topic with a known number of partitions.",
            )
        for name, count in found.items():
            flow.learn(name, count)
        counts |= found


@dataclass(slots=True, eq=False)
class _Writer:
    """A subtopology that writes to waiting topics."""

    sinks: Set[str]
    unknown: int
    """How many of the topics that it reads have no known count."""
    widest: int = 0
    """The largest known count of what it reads."""


class _Flow:
    """What is known of the writers of topics that wait for their counts. Each subtopology is read once, and
    each pair of a writer and a topic is looked at a constant number of times.
    """

    def __init__(self, topology: Topology, waiting: Set[str], counts: Mapping[str, int]) -> None:
        self.waiting = set(waiting)
        self._clear: set[str] = set()
        """The waiting topics whose writers read only topics with known counts."""
        self._reached: set[str] = set()
        """The waiting topics with a writer that reads a topic with a known count."""
        self._writers: dict[str, list[_Writer]] = {}
        self._unclear: dict[str, int] = {}
        """How many writers of a waiting topic read a topic without a known count."""
        self._readers: dict[str, list[_Writer]] = {}
        for part in topology.subtopologies:
            if sinks := self.waiting.intersection(part.repartition_sinks):
                self._add(sinks, set(part.all_sources), counts)
        self._clear = {name for name in self._writers if name not in self._unclear}

    def _add(self, sinks: Set[str], sources: Set[str], counts: Mapping[str, int]) -> None:
        unknown = {name for name in sources if not counts.get(name)}
        widest = max((counts[name] for name in sources - unknown), default=0)
        writer = _Writer(sinks=sinks, unknown=len(unknown), widest=widest)
        for name in unknown:
            self._readers.setdefault(name, []).append(writer)
        for name in sinks:
            self._writers.setdefault(name, []).append(writer)
            if unknown:
                self._unclear[name] = self._unclear.get(name, 0) + 1
        if widest:
            self._reached |= sinks

    def clear(self) -> dict[str, int]:
        return self._counts(self._clear)

    def in_loops(self) -> dict[str, int]:
        return self._counts(self._reached)

    def learn(self, name: str, count: int) -> None:
        """The waiting topic has this count."""
        for known in (self.waiting, self._clear, self._reached):
            known.discard(name)
        for writer in self._readers.pop(name, ()):
            if not writer.widest:
                self._reached |= writer.sinks & self.waiting
            writer.widest = max(writer.widest, count)
            writer.unknown -= 1
            if not writer.unknown:
                self._note_known(writer)

    def _note_known(self, writer: _Writer) -> None:
        for sink in writer.sinks:
            self._unclear[sink] -= 1
            if not self._unclear[sink] and sink in self.waiting:
                self._clear.add(sink)

    def _counts(self, names: Set[str]) -> dict[str, int]:
        return {name: max(writer.widest for writer in self._writers[name]) for name in names}


def _copartition(group: tuple[str, ...], fixed: set[str], counts: dict[str, int]) -> None:
    given = {counts[name] for name in group if name in fixed}
    if len(given) > 1:
        described = listed([f"{name} ({counts[name]})" for name in group if name in fixed])
        raise _Unplannable(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"These topics must have equally many partitions: {described}.",
        )
    count = given.pop() if given else max((counts[name] for name in group), default=0)
    for name in group:
        counts[name] = count
