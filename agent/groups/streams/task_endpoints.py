"""Which instance has the state of which partitions, for interactive queries (KIP-1071). Pure.

Clients compare the *endpoint epoch* only for equality. It is a digest of what it names, so that a coordinator
that takes the group over never gives one epoch to different endpoints.

Promises:
- A change costs one look at each member. Partitions are listed again only for endpoints whose tasks changed.
- The endpoints fit into `group_streams_max_endpoint_bytes`. If they would not, there are none: a part of them
  would make clients believe that the rest has no state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from agent.groups.events import Endpoint, EndpointPartitions, Tasks, TaskSets
from agent.groups.streams.streams_membership import StreamsMembership
from agent.groups.streams.topology import Topology
from storage.identifiers import Partition

_POSITIVE = 0x7FFFFFFF
_ENDPOINT_BYTES = 8
"""Of an endpoint without its host and topics."""
_TOPIC_BYTES = 4
_PARTITION_BYTES = 4

_Address = tuple[str, int]
_Topics = Mapping[str, frozenset[Partition]]


class _TooLarge(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An endpoint with its partitions, and the tasks of its members from which they follow."""

    tasks: tuple[Tasks, ...]
    partitions: EndpointPartitions
    size_bytes: int
    digest: int


class TaskEndpoints:
    def __init__(self) -> None:
        self._of_version = -1
        self._topology: Topology | None = None
        self._counts: Mapping[str, int] = {}
        self._sources: Mapping[str, tuple[str, ...]] = {}
        self._listed: dict[_Address, _Listed] = {}
        self._epoch = 0
        self._known: tuple[EndpointPartitions, ...] | None = None

    def look(self, group: StreamsMembership) -> tuple[int, tuple[EndpointPartitions, ...] | None]:
        """Returns the endpoint epoch and the endpoints. None: no member has one. Empty: they are too many."""
        version = group.roster.version
        if version != self._of_version:
            self._of_version = version
            self._look_again(group)
        return self._epoch, self._known

    def _look_again(self, group: StreamsMembership) -> None:
        self._epoch, self._known = 0, None
        tasks = _tasks_by_address(group)
        topology, counts = group.roster.topology, group.plan.partition_counts
        if not tasks or topology is None:
            self._listed = {}
            return
        if topology is not self._topology or counts != self._counts:
            self._topology, self._counts, self._listed = topology, counts, {}
            self._sources = {part.subtopology_id: tuple(part.all_sources) for part in topology.subtopologies}
        before, self._listed = self._listed, {}
        room = group.settings.group_streams_max_endpoint_bytes
        try:
            for address in sorted(tasks):
                listed = before.get(address)
                if listed is None or listed.tasks != tasks[address]:
                    listed = self._list(address, tasks[address], room)
                room -= listed.size_bytes
                if room < 0:
                    raise _TooLarge
                self._listed[address] = listed
        except _TooLarge:
            self._known = ()
            return
        self._known = tuple(listed.partitions for listed in self._listed.values())
        digests = [listed.digest for listed in self._listed.values()]
        self._epoch = crc32(repr(digests).encode()) & _POSITIVE

    def _list(self, address: _Address, tasks: tuple[Tasks, ...], room: int) -> _Listed:
        """Raises `_TooLarge` as soon as more than `room` bytes are listed."""
        host, port = address
        size = _ENDPOINT_BYTES + len(host)
        active, active_size = self._topics([one.active for one in tasks], room - size)
        size += active_size
        standby, standby_size = self._topics([one.standby for one in tasks], room - size)
        described = (address, _sorted(active), _sorted(standby))
        return _Listed(
            tasks=tasks,
            partitions=EndpointPartitions(
                endpoint=Endpoint(host=host, port=port), active=active, standby=standby
            ),
            size_bytes=size + standby_size,
            digest=crc32(repr(described).encode()),
        )

    def _topics(self, tasks: Sequence[TaskSets], room: int) -> tuple[_Topics, int]:
        topics: dict[str, set[Partition]] = {}
        size = 0
        for sets in tasks:
            for subtopology, numbers in sets.items():
                for topic in self._sources.get(subtopology, ()):
                    if topic not in topics:
                        size += _TOPIC_BYTES + len(topic)
                    size += _PARTITION_BYTES * len(numbers)
                    if size > room:
                        raise _TooLarge
                    count = self._counts.get(topic, 0)
                    topics.setdefault(topic, set()).update(number for number in numbers if number < count)
        return {topic: frozenset(numbers) for topic, numbers in topics.items() if numbers}, size


def _tasks_by_address(group: StreamsMembership) -> Mapping[_Address, tuple[Tasks, ...]]:
    found: dict[_Address, list[Tasks]] = {}
    for member in group.roster.members.values():
        endpoint = member.endpoint
        if endpoint is not None:
            found.setdefault((endpoint.host, endpoint.port), []).append(member.assigned)
    return {address: tuple(tasks) for address, tasks in found.items()}


def _sorted(topics: _Topics) -> Sequence[object]:
    return sorted((topic, sorted(numbers)) for topic, numbers in topics.items())
