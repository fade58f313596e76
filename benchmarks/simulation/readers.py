"""Reads: which zone fetches which object, from which agent's memory, and how often from the store.

Pages are in the product's own cache (`cache_ring/pages/page_cache.py`), one per agent and lane, and the
product's ring names the owner. Promises that an object which several readers want while it loads is fetched
once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulation.agent import Agent, Segment
from benchmarks.simulation.events import EventLoop
from benchmarks.simulation.latency import Durations
from benchmarks.simulation.scenario import Group, Placement, Scenario
from benchmarks.simulation.store import Store
from cache_ring.pages.page_cache import PageCache
from cache_ring.settings import CacheRingSettings

_PUSH_S = 0.001
"""From the commit's answer to the reader's agent in another zone."""


class _Page(bytes):
    """A page by its size alone: the cache asks for nothing else."""

    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


@dataclass(slots=True)
class ReadCounts:
    objects: int = 0
    own_zone_gets: int = 0
    other_zone_gets: int = 0
    gets_by_zone: dict[str, int] = field(default_factory=dict)
    zones_read: int = 0
    """Pairs of an object and a zone, not the writer's, that reads of it."""
    reads: dict[int, int] = field(default_factory=dict)
    """By group: of an object in a zone."""
    hits: dict[int, int] = field(default_factory=dict)
    """Of these, from memory, or from another's load under way."""
    runs: int = 0
    bytes: int = 0
    end_to_end: Durations = field(default_factory=Durations)
    """From a batch's arrival until a reader at the end of its partition has its bytes."""

    @property
    def hit_ratio(self) -> float:
        return sum(self.hits.values()) / max(1, sum(self.reads.values()))

    @property
    def last_groups_hit_ratio(self) -> float:
        """Of the group named last, which may be far behind the others."""
        last = max(self.reads, default=0)
        return self.hits.get(last, 0) / max(1, self.reads.get(last, 0))


class Readers:
    def __init__(
        self,
        *,
        loop: EventLoop,
        scenario: Scenario,
        placement: Placement,
        store: Store,
        random: np.random.Generator,
        on_read: Callable[[str, int, int], None],
        on_get: Callable[[int, int], None],
    ) -> None:
        """`on_read` gets a zone, the runs and the bytes. `on_get` gets the agent that loads an object, and
        its size.
        """
        self._loop = loop
        self._scenario = scenario
        self._placement = placement
        self._store = store
        self._random = random
        self._on_read = on_read
        self._on_get = on_get
        settings = CacheRingSettings()
        self._tail_age_s = settings.tail_age_s
        agents = range(scenario.agents)
        self._tail = [PageCache[int](scenario.page_cache_bytes) for _ in agents]
        self._history = [PageCache[int](settings.catch_up_cache_bytes) for _ in agents]
        self._loading: dict[tuple[int, int], list[Callable[[], None]]] = {}
        per_zone = {zone: placement.zone_of.count(zone) for zone in scenario.zones}
        self._own_id = {
            zone: 1.0 - (1.0 - 1.0 / count) ** (scenario.draws_per_agent * count) if count else 0.0
            for zone, count in per_zone.items()
        }
        self._objects = 0
        self.counts = ReadCounts()

    def committed(self, agent: Agent, segment: Segment, shard: int) -> None:
        """A segment's runs of one shard have their offsets, and waiting readers learn of them. Readers ask
        for the object when the first of its shards is committed.
        """
        is_first, is_last = not segment.number, not segment.shards_left
        if is_first:
            self._objects += 1
            segment.number = self._objects
            self.counts.objects += 1
        number, written_s = segment.number, self._loop.now_s
        writer_zone = self._placement.zone_of[agent.number]
        page = _page(segment.size_bytes)
        if is_first:
            self._tail[agent.number].put(number, page)
        foreign: set[str] = set()
        all_runs = sum(rows.size for rows in segment.rows)
        for place, group in enumerate(self._scenario.groups):
            for zone, runs in self._readers_of(group, segment, shard):
                share = runs / all_runs
                self.counts.runs += runs
                self.counts.bytes += int(share * segment.size_bytes)
                self._on_read(zone, runs, int(share * segment.size_bytes))
                if not is_first and not is_last:
                    continue
                owner = self._owner(agent, writer_zone, zone, number)
                if zone != writer_zone and is_first:
                    foreign.add(zone)
                if is_first:
                    lag_s = self._random.exponential(group.lag_s) if group.lag_s else 0.0
                    self._loop.after(
                        _PUSH_S + lag_s, self._read, place, number, page, owner, zone, writer_zone, written_s
                    )
                if is_last and not group.lag_s:
                    self._note_end_to_end(number, owner, segment)
        self.counts.zones_read += len(foreign)

    def _readers_of(self, group: Group, segment: Segment, shard: int) -> list[tuple[str, int]]:
        """The zones in which a group reads the segment, and the number of its runs there."""
        rows = segment.rows[shard]
        if group.everywhere:
            return [(zone, rows.size) for zone in group.zones]
        counts = np.bincount(rows % len(group.zones), minlength=len(group.zones))
        return [(zone, int(count)) for zone, count in zip(group.zones, counts, strict=True) if count]

    def _owner(self, writer: Agent, writer_zone: str, zone: str, number: int) -> int:
        if zone == writer_zone and self._random.random() < self._own_id[zone]:
            return writer.number
        owner = self._placement.ring.owner(zone, f"{writer.number}/{number}")
        return writer.number if owner is None else owner.node_id

    def _read(
        self, group: int, number: int, page: _Page, owner: int, zone: str, writer_zone: str, written_s: float
    ) -> None:  # fmt: skip
        counts = self.counts
        counts.reads[group] = counts.reads.get(group, 0) + 1
        lanes = (self._tail[owner], self._history[owner])
        if any(lane.get(number) is not None for lane in lanes) or (owner, number) in self._loading:
            counts.hits[group] = counts.hits.get(group, 0) + 1
            return
        cache = lanes[self._loop.now_s - written_s > self._tail_age_s]
        counts.gets_by_zone[zone] = counts.gets_by_zone.get(zone, 0) + 1
        if zone == writer_zone:
            counts.own_zone_gets += 1
        else:
            counts.other_zone_gets += 1
        self._on_get(owner, len(page))
        self._loading[owner, number] = []
        self._store.get(len(page), lambda: self._loaded(cache, owner, number, page))

    def _loaded(self, cache: PageCache[int], owner: int, number: int, page: _Page) -> None:
        cache.put(number, page)
        for waiter in self._loading.pop((owner, number)):
            waiter()

    def _note_end_to_end(self, number: int, owner: int, segment: Segment) -> None:
        """Once the page is there, which may be at once."""

        def seen() -> None:
            for part in segment.taken:
                self.counts.end_to_end.add(self._loop.now_s - part.owner.arrived_s, part.end - part.start)

        def look() -> None:
            waiting = self._loading.get((owner, number))
            if waiting is None:
                seen()
            else:
                waiting.append(seen)

        self._loop.after(_PUSH_S, look)


def _page(size_bytes: int) -> _Page:
    page = _Page()
    page.size_bytes = size_bytes
    return page
