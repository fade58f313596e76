"""Which instance has the state of which partitions, for interactive queries (KIP-1071). Pure.

Clients compare the *endpoint epoch* only for equality. It is a digest of what it names, so that a coordinator
that takes the group over never gives one epoch to different endpoints.
"""

from collections.abc import Iterable, Mapping
from zlib import crc32

from agent.groups.events import Endpoint, EndpointPartitions, TaskSets
from agent.groups.partition_sets import partitions_of
from agent.groups.streams.streams_membership import StreamsMembership
from storage.identifiers import Partition

_POSITIVE = 0x7FFFFFFF

_Sources = Mapping[str, tuple[str, ...]]


class TaskEndpoints:
    def __init__(self) -> None:
        self._of_version = -1
        self._epoch = 0
        self._known: tuple[EndpointPartitions, ...] | None = None

    def look(self, group: StreamsMembership) -> tuple[int, tuple[EndpointPartitions, ...] | None]:
        """Returns the endpoint epoch and the endpoints. None: no member has one."""
        version = group.roster.version
        if version != self._of_version:
            self._of_version = version
            self._known = _endpoints(group)
            self._epoch = 0 if self._known is None else crc32(repr(_sorted(self._known)).encode()) & _POSITIVE
        return self._epoch, self._known


def _endpoints(group: StreamsMembership) -> tuple[EndpointPartitions, ...] | None:
    members = [member for member in group.roster.members.values() if member.endpoint is not None]
    topology = group.roster.topology
    if not members or topology is None:
        return None
    sources = {part.subtopology_id: tuple(part.all_sources) for part in topology.subtopologies}
    counts = group.plan.partition_counts
    found = []
    for endpoint in sorted({(one.endpoint.host, one.endpoint.port) for one in members if one.endpoint}):
        here = [one for one in members if one.endpoint and (one.endpoint.host, one.endpoint.port) == endpoint]
        found.append(
            EndpointPartitions(
                endpoint=Endpoint(host=endpoint[0], port=endpoint[1]),
                active=_topics((one.assigned.active for one in here), sources, counts),
                standby=_topics((one.assigned.standby for one in here), sources, counts),
            )
        )
    return tuple(found)


def _topics(
    tasks: Iterable[TaskSets], sources: _Sources, counts: Mapping[str, int]
) -> Mapping[str, frozenset[Partition]]:
    topics: dict[str, set[Partition]] = {}
    for sets in tasks:
        for subtopology, number in partitions_of(sets):
            for topic in sources.get(subtopology, ()):
                if number < counts.get(topic, 0):
                    topics.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in topics.items()}


def _sorted(known: tuple[EndpointPartitions, ...]) -> list[object]:
    return [
        (
            one.endpoint,
            sorted((topic, sorted(numbers)) for topic, numbers in one.active.items()),
            sorted((topic, sorted(numbers)) for topic, numbers in one.standby.items()),
        )
        for one in known
    ]
