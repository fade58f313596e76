"""A cluster put together and run: one scenario in, one result out."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agent.settings import AgentSettings
from benchmarks.simulation.agent import Agent, Chunk, Counts, Segment
from benchmarks.simulation.background import Background, read_partitions
from benchmarks.simulation.calibration import S3_IN_A_REGION, Calibration, StoreCost
from benchmarks.simulation.combining import Combiner
from benchmarks.simulation.events import Cores, EventLoop, Thread
from benchmarks.simulation.postgres import Postgres, PostgresPlace
from benchmarks.simulation.readers import ReadCounts, Readers
from benchmarks.simulation.scenario import Placement, Scenario, place
from benchmarks.simulation.store import Store

_READ_STEP_S = 0.1
_FETCHES_PER_CONSUMER_S = 50.0
"""A consumer's next fetch leaves some 20 ms after the last answer at the earliest: its client has work to do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Rates are per second of the time after the warm-up."""

    scenario: Scenario
    ack_p50_s: float
    ack_p99_s: float
    end_to_end_p50_s: float
    bytes_per_s: float
    acked_per_s: float
    """Batches."""
    came_per_s: float
    puts_per_s: float
    mean_object_bytes: float
    gets_per_s: float
    own_zone_gets_per_object: float
    other_zone_gets_per_object_and_zone: float
    gets_per_object: float
    hit_ratio: float
    last_groups_hit_ratio: float
    commits_per_s: float
    runs_per_s: float
    lock_waits_per_commit: float
    postgres_cpu: float
    """Cores used, all shards together."""
    postgres_busiest: float
    """Cores used by the busiest shard."""
    log_bytes_per_s: float
    polls_per_s: float
    poll_p50_s: float
    agent_cpu: float
    """Share of a core, mean over agents."""
    agent_cpu_max: float
    waiting_batches: int
    seals: dict[str, float]
    """Shares by reason."""
    events: int

    @property
    def keeps_up(self) -> bool:
        """True if all batches were acknowledged, except those in flight."""
        return self.acked_per_s >= 0.97 * self.came_per_s


class Cluster:
    def __init__(
        self,
        scenario: Scenario,
        calibration: Calibration,
        *,
        store: StoreCost | None = None,
        placement: Placement | None = None,
    ) -> None:
        """`store`: by default S3's assumed figures, or those measured if everything shares one machine."""
        self.scenario = scenario
        self.loop = loop = EventLoop()
        self.placement = placement or place(scenario)
        self._calibration = calibration
        random = np.random.default_rng(scenario.seed)
        shared = None if scenario.machine_cores is None else Cores(loop, scenario.machine_cores)
        self._shared = shared
        self._arrivals = random.spawn(scenario.agents)
        cost = store or (S3_IN_A_REGION if shared is None else calibration.store)
        self.store = Store(loop, cost, shared, random.spawn(1)[0])
        commit, surroundings = (
            calibration.commit_spaced,
            PostgresPlace(log_bytes_per_s=scenario.log_bytes_per_s),
        )
        if shared is None:
            commit = replace(calibration.commit, sync_s=scenario.sync_s)
            surroundings = replace(surroundings, standby_s=scenario.standby_s, network_s=scenario.network_s)
        self.sequencer = [
            Postgres(loop, shared or Cores(loop, scenario.postgres_cores), commit, surroundings, own)
            for own in random.spawn(scenario.shards)
        ]
        commit_through = (
            [Combiner(loop, one) for one in self.sequencer] if scenario.combined else self.sequencer
        )
        self.counts = Counts()
        self.readers = Readers(
            loop=loop,
            scenario=scenario,
            placement=self.placement,
            store=self.store,
            random=random.spawn(1)[0],
            on_read=self._note_read,
            on_get=self._note_get,
        )
        self.background = Background(
            loop, scenario, self.placement, calibration.background, self.sequencer, random.spawn(1)[0]
        )
        self.agents = [
            Agent(
                number=number,
                loop=loop,
                scenario=scenario,
                cost=calibration.agent,
                thread=Thread(shared or Cores(loop, 1)),
                store=self.store,
                sequencer=commit_through,
                shard_of=self.placement.shard_of,
                counts=self.counts,
                on_commit=self._committed,
                random=own,
            )
            for number, own in enumerate(random.spawn(scenario.agents))
        ]
        self._asked = [
            sum(shards) / scenario.consumers_per_agent for shards in read_partitions(scenario, self.placement)
        ]
        self._in_zone = {zone: self.placement.zone_of.count(zone) for zone in scenario.zones}
        self._read: dict[str, list[int]] = {zone: [0, 0, 0] for zone in scenario.zones}
        self._ids_left = [0] * scenario.agents
        self._ids_in_bulk = AgentSettings().reserved_segment_ids // 2
        self._start()

    def _start(self) -> None:
        for number in range(self.scenario.agents):
            self._next_arrival(number, first=True)
        self.loop.after(_READ_STEP_S, self._serve_readers)
        if self.scenario.postgres_away is not None:
            at_s, away_s = self.scenario.postgres_away
            for postgres in self.sequencer:
                self.loop.at(at_s, postgres.fail_over, away_s)

    # --- clients

    def _next_arrival(self, number: int, first: bool = False) -> None:
        """Requests come at random; where there are many, those of a short time come together."""
        scenario, random = self.scenario, self._arrivals[number]
        written = self.placement.written_by[number]
        if not written.size:
            return
        share = written.size / (scenario.partitions * len(scenario.zones))
        requests_per_s = (
            share * scenario.bytes_per_s / scenario.mean_batch_bytes / scenario.batches_per_request
        )
        if requests_per_s * scenario.chunk_s > 1:
            requests, pause_s = int(random.poisson(requests_per_s * scenario.chunk_s)), scenario.chunk_s
            if first:
                pause_s *= float(random.uniform())
        else:
            requests, pause_s = 1, float(random.exponential(1 / requests_per_s))
        if requests and not first:
            self._arrive(number, requests, pause_s if requests > 1 else 0.0)
        self.loop.after(pause_s, self._next_arrival, number)

    def _arrive(self, number: int, requests: int, span_s: float) -> None:
        scenario, random = self.scenario, self._arrivals[number]
        written = self.placement.written_by[number]
        batches = requests * scenario.batches_per_request
        sizes = scenario.batch_bytes
        if len(sizes) > 1:
            of_batch = np.asarray(sizes)[random.integers(0, len(sizes), batches)].tolist()
        else:
            of_batch = [sizes[0]] * batches
        chunk = Chunk(
            arrived_s=self.loop.now_s - span_s / 2,
            span_s=span_s,
            sizes=of_batch,
            requests=requests,
            partitions=written[random.integers(0, written.size, batches)],
        )
        if self._shared is None:
            self.agents[number].receive(chunk)
        else:
            cost = self._calibration.client
            work_s = requests * cost.per_request_s + chunk.size_bytes * cost.per_byte_s
            self._shared.submit(work_s, lambda: self.agents[number].receive(chunk))

    # --- what commits cause

    def _committed(self, agent: Agent, segment: Segment, shard: int) -> None:
        self.readers.committed(agent, segment, shard)
        if not self._ids_left[agent.number]:
            self._ids_left[agent.number] = self._ids_in_bulk
            self.background.reserved(shard, self._ids_in_bulk)
        self._ids_left[agent.number] -= 1

    def _note_read(self, zone: str, runs: int, size_bytes: int) -> None:
        totals = self._read[zone]
        totals[0] += runs
        totals[1] += size_bytes
        totals[2] += 1

    def _note_get(self, number: int, size_bytes: int) -> None:
        cost = self._calibration.agent
        self.agents[number].thread.submit(cost.per_got_object_s + size_bytes * cost.per_got_byte_s, _nothing)

    def _serve_readers(self) -> None:
        """Agents of a zone share what its readers fetched meanwhile."""
        cost = self._calibration.agent
        for number, agent in enumerate(self.agents):
            zone = self.placement.zone_of[number]
            runs, size_bytes, commits = self._read[zone]
            count = self._in_zone[zone]
            fetches = self.scenario.consumers_per_agent * min(commits, _FETCHES_PER_CONSUMER_S * _READ_STEP_S)
            work_s = fetches * (cost.per_fetch_s + self._asked[number] * cost.per_asked_partition_s)
            work_s += cost.idle_per_s * _READ_STEP_S
            work_s += (runs * cost.per_fetched_run_s + size_bytes * cost.per_fetched_byte_s) / count
            agent.thread.submit(work_s, _nothing)
            if self._shared is not None:
                self._shared.submit(fetches * self._calibration.client.per_fetch_s, _nothing)
        for totals in self._read.values():
            totals[:] = [0, 0, 0]
        self.loop.after(_READ_STEP_S, self._serve_readers)

    # --- figures

    def run(self) -> Result:
        scenario = self.scenario
        self.loop.run_until(scenario.warm_up_s)
        before = self._snapshot()
        events = self.loop.events
        self._forget_durations()
        self.loop.run_until(scenario.warm_up_s + scenario.seconds)
        after = self._snapshot()
        per_s = {name: (after[name] - before[name]) / scenario.seconds for name in before if name in _SUMS}
        agents = [
            (new - old) / scenario.seconds for new, old in zip(after["agents"], before["agents"], strict=True)
        ]
        shards = [
            (new - old) / scenario.seconds for new, old in zip(after["shards"], before["shards"], strict=True)
        ]
        reads: ReadCounts = self.readers.counts
        puts = after["puts"] - before["puts"]
        objects = max(1, reads.objects)
        return Result(
            scenario=scenario,
            ack_p50_s=self.counts.acks.percentile(0.5),
            ack_p99_s=self.counts.acks.percentile(0.99),
            end_to_end_p50_s=reads.end_to_end.percentile(0.5),
            bytes_per_s=per_s["put_bytes"],
            acked_per_s=per_s["acked"],
            came_per_s=per_s["came"],
            puts_per_s=per_s["puts"],
            mean_object_bytes=(after["put_bytes"] - before["put_bytes"]) / max(1, puts),
            gets_per_s=per_s["gets"],
            own_zone_gets_per_object=reads.own_zone_gets / objects,
            other_zone_gets_per_object_and_zone=reads.other_zone_gets / max(1, reads.zones_read),
            gets_per_object=per_s["gets"] / max(1e-9, per_s["puts"]),
            hit_ratio=reads.hit_ratio,
            last_groups_hit_ratio=reads.last_groups_hit_ratio,
            commits_per_s=per_s["commits"],
            runs_per_s=per_s["runs"],
            lock_waits_per_commit=per_s["lock_waits"] / max(1e-9, per_s["commits"]),
            postgres_cpu=sum(shards),
            postgres_busiest=max(shards),
            log_bytes_per_s=per_s["log_bytes"],
            polls_per_s=per_s["polls"],
            poll_p50_s=self.background.poll_durations.percentile(0.5),
            agent_cpu=sum(agents) / len(agents),
            agent_cpu_max=max(agents),
            waiting_batches=sum(agent.waiting_batches for agent in self.agents),
            seals={
                reason.value: count / max(1, sum(self.counts.seals.values()))
                for reason, count in self.counts.seals.items()
            },
            events=self.loop.events - events,
        )

    def _forget_durations(self) -> None:
        self.counts.acks.__init__()  # type: ignore[misc]
        self.counts.seals.clear()
        self.readers.counts = ReadCounts()
        self.background.poll_durations.__init__()  # type: ignore[misc]

    def _snapshot(self) -> dict[str, Any]:
        return {
            "put_bytes": self.store.put_bytes,
            "puts": self.store.puts,
            "gets": self.store.gets,
            "acked": self.counts.acked_batches,
            "came": self.counts.came_batches,
            "commits": sum(shard.commits for shard in self.sequencer),
            "runs": sum(shard.runs for shard in self.sequencer),
            "lock_waits": sum(shard.locks.waits for shard in self.sequencer),
            "log_bytes": sum(shard.log.bytes for shard in self.sequencer),
            "polls": self.background.polls,
            "agents": [agent.thread.busy_s for agent in self.agents],
            "shards": [shard.cpu_s for shard in self.sequencer],
        }


_SUMS = frozenset(
    {"put_bytes", "puts", "gets", "acked", "came", "commits", "runs", "lock_waits", "log_bytes", "polls"}
)


def _nothing() -> None:
    """Readers wait for their bytes, not for this."""


def simulate(scenario: Scenario, calibration: Calibration, **options: object) -> Result:
    return Cluster(scenario, calibration, **options).run()  # type: ignore[arg-type]
