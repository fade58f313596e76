"""The group coordinator of an agent: which groups are loaded, since when it holds them, and when they leave
memory (docs/design/groups.md#coordinators).

Promises:
- The agent answers only for groups that the ring gives to it.
- A group is claimed in Postgres before its first answer. The claim fences every earlier coordinator.
- If the agent loses a group, its place in the ring or Postgres, every request gets that answer within the
  group's lease, also requests that wait.
- Loaded groups, concurrent loads and queued requests are bounded.
- A request to a loaded group touches no database unless it changes the group.
"""

import asyncio
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Context
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.groups.consumer.known_topics import look_at
from agent.groups.coordinator.running_group import MachineMaker, RunningGroup, SharedByGroups
from agent.groups.events import Answer, GroupFault, Request, Token, TopicsWanted
from agent.groups.settings import GroupSettings
from agent.groups.streams.topology import InternalTopic
from agent.metrics import Metrics
from agent.tenants.local_topics import topics_of_tenant
from agent.topic_directory import TopicDirectory
from cache_ring.ring.membership import Membership
from cache_ring.ring.ring import Ring
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.groups.groups import DeleteOutcome, Groups, can_be_id
from sequencer.tenants.tenant_limits import TenantLimitReached

log = logging.getLogger("tidelog")

_Answer = TypeVar("_Answer", bound=Answer)

_AWAY = (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError)
_LOOKS_FOR_ROOM = 64
"""How many groups are tried, oldest first, to find one that may leave when another needs its place."""


class Coordinator:
    """`run` owns every group's task. Use `ask` for requests that the machine answers, and `group` for the
    others. `acls` returns the newest snapshot of the access control lists, which is another object after each
    change. None: there is no authorizer.
    """

    def __init__(
        self,
        *,
        groups: Groups,
        topics: TopicDirectory,
        membership: Membership,
        settings: GroupSettings,
        metrics: Metrics,
        make_machine: MachineMaker,
        clock: Callable[[], float],
        acls: Callable[[], object] | None = None,
        is_tenant: Callable[[str], bool] = lambda _: False,
        created_for: Callable[[str, InternalTopic], None] = lambda _group, _topic: None,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._membership = membership
        self._settings = settings
        self._metrics = metrics
        self._make_machine = make_machine
        self._clock = clock
        self._acls = acls
        self._shared = SharedByGroups(
            groups=groups, topics=topics, settings=settings, metrics=metrics, clock=clock,
            may_serve=self._may_serve, has_authorizer=acls is not None, is_tenant=is_tenant,
            created_for=created_for,
        )  # fmt: skip
        self._loaded: OrderedDict[str, RunningGroup] = OrderedDict()
        self._loading: dict[str, tuple[bool, asyncio.Task[RunningGroup | GroupFault]]] = {}
        self._loads = asyncio.Semaphore(settings.group_loads)
        self._failed_loads = 0
        self._tokens = itertools.count(1)
        self._tasks: asyncio.TaskGroup | None = None
        self._draining = False
        self._changes = 0
        """How often a different Postgres became the primary."""

    # --- for handlers

    def next_token(self) -> Token:
        return Token(next(self._tokens))

    def coordinates(self, group_id: str) -> bool:
        """True if the ring gives the group to this agent."""
        return self._is_ours(self._membership.ring, group_id)

    def loaded(self, group_id: str) -> RunningGroup | None:
        """Returns the group if it is in memory. Loads nothing."""
        running = self._loaded.get(group_id)
        return None if running is None or running.ended else running

    async def ask(
        self,
        group_id: str,
        event: Request,
        answer: type[_Answer],
        *,
        create: bool = False,
        when_queued: Callable[[], None] | None = None,
    ) -> _Answer | GroupFault:
        """Returns the machine's answer, which may take minutes, or why there is none. A cancelled caller
        drops its request.

        `when_queued` is called once the machine is sure to handle the event before all later ones.
        """
        running = await self.group(group_id, create=create)
        if isinstance(running, GroupFault):
            return running
        submitted = running.submit(event)
        if isinstance(submitted, GroupFault):
            return submitted
        if when_queued is not None:
            when_queued()
        try:
            answered = await submitted
        except asyncio.CancelledError:
            running.forget(event.token)
            raise
        assert isinstance(answered, answer | GroupFault), (
            f"{type(event).__name__} got {type(answered).__name__}"
        )
        return answered

    async def group(self, group_id: str, *, create: bool = False) -> RunningGroup | GroupFault:
        """Returns the group, claimed and loaded. GROUP_NOT_FOUND if it does not exist and must not be
        created.
        """
        if not can_be_id(group_id):
            return GroupFault.INVALID_GROUP
        while True:
            fault = self._may_serve() or (None if self.coordinates(group_id) else GroupFault.NOT_COORDINATOR)
            if fault is not None:
                self._end_loaded(group_id, fault)
                return fault
            running = self.loaded(group_id)
            if running is not None:
                running.touched_s = self._clock()
                self._loaded.move_to_end(group_id)
                return running
            creates, task = self._load_task(group_id, create)
            found = await asyncio.shield(task)
            if found is GroupFault.GROUP_NOT_FOUND and create and not creates:
                continue  # the caller that began the load did not want the group created
            return found

    async def delete(self, group_id: str) -> GroupFault | None:
        """Deletes a group without members, and its offsets. None: it is gone."""
        running = await self.group(group_id)
        if isinstance(running, GroupFault):
            return running
        fault = running.machine.check_delete()
        if fault is not None:
            return fault
        self._end_loaded(
            group_id, GroupFault.NOT_COORDINATOR
        )  # members that join from now on make a new group
        try:
            outcome = await self._groups.delete(group_id, running.coordinator_epoch)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning("group cannot be deleted", extra={"group": group_id, "error": str(error)})
            return GroupFault.COORDINATOR_UNAVAILABLE
        return _DELETE_FAULTS[outcome]

    def lost(self, epochs: Mapping[str, int], fault: GroupFault) -> None:
        """Unloads groups whose epochs may not hold any more. Their next request claims them again."""
        for group_id, epoch in epochs.items():
            running = self._loaded.get(group_id)
            if running is not None and running.coordinator_epoch == epoch:
                self._end_loaded(group_id, fault)

    def forget_all(self) -> None:
        """Another Postgres became the primary: the next request of each group claims it there."""
        self._changes += 1
        self._drop(list(self._loaded), GroupFault.COORDINATOR_UNAVAILABLE)

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """Returns the loaded groups by protocol and state."""
        return Counter(
            (running.machine.kind, running.machine.state.value) for running in self._loaded.values()
        )

    # --- for the composition root

    async def run(self) -> None:
        """Keeps what is loaded true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._watch_leases(), name="group leases")
            tasks.create_task(self._watch_topics(), name="group topics")
            tasks.create_task(self._adopt(), name="groups of dead coordinators")

    def drain(self) -> None:
        """Answers all requests, now and later, that the group is coordinated elsewhere. So clients move at
        once.
        """
        self._draining = True
        self._drop(list(self._loaded), GroupFault.NOT_COORDINATOR)

    # --- loading

    def _may_serve(self) -> GroupFault | None:
        if self._draining or not self._membership.is_serving():
            return GroupFault.NOT_COORDINATOR
        return None

    def _is_ours(self, ring: Ring, group_id: str) -> bool:
        chosen, self_ = ring.coordinator(f"group/{group_id}"), self._membership.self_
        return chosen is not None and self_ is not None and chosen.node_id == self_.node_id

    def _load_task(self, group_id: str, create: bool) -> tuple[bool, asyncio.Task[RunningGroup | GroupFault]]:
        loading = self._loading.get(group_id)
        if loading is None:
            assert self._tasks is not None, "the coordinator runs"
            # A separate context: the load works for all members, not only for the client that came first.
            task = self._tasks.create_task(
                self._load(group_id, create), name=f"load {group_id}", context=Context()
            )
            loading = self._loading[group_id] = (create, task)
            task.add_done_callback(lambda _: self._loading.pop(group_id, None))
        return loading

    async def _load(self, group_id: str, create: bool) -> RunningGroup | GroupFault:
        if len(self._loading) > self._settings.group_queue_events or not self._has_room():
            return GroupFault.OVERLOADED
        failed_before = self._failed_loads
        async with self._loads:
            if self._failed_loads != failed_before:
                return (
                    GroupFault.COORDINATOR_UNAVAILABLE
                )  # the one that was waited for failed, so this one would too
            try:
                return await self._claim(group_id, create)
            except (SequencerUnavailable, CommitOutcomeUnknown) as error:
                self._failed_loads += 1
                log.warning("group cannot be loaded", extra={"group": group_id, "error": str(error)})
                return GroupFault.COORDINATOR_UNAVAILABLE
            except Exception:
                log.exception("group failed to load unexpectedly", extra={"group": group_id})
                return GroupFault.COORDINATOR_UNAVAILABLE

    async def _claim(self, group_id: str, create: bool) -> RunningGroup | GroupFault:
        self_, sent_s, changes = self._membership.self_, self._clock(), self._changes
        if self_ is None:
            return GroupFault.NOT_COORDINATOR
        try:
            claimed = await self._groups.claim(group_id, self_.node_id, create=create)
        except TenantLimitReached:
            return GroupFault.TOO_MANY_GROUPS
        if self._changes != changes:
            return GroupFault.COORDINATOR_UNAVAILABLE
        if claimed is None:
            return GroupFault.GROUP_NOT_FOUND
        if self._draining:
            return GroupFault.NOT_COORDINATOR
        running = RunningGroup(
            group_id,
            claimed.coordinator_epoch,
            self._make_machine(claimed.stored, int(self._clock() * 1000)),
            sent_s + self._settings.group_lease_s,
            self._shared,
        )
        running.configure(claimed.config)
        self._loaded[group_id] = running
        assert self._tasks is not None, "the coordinator runs"
        self._tasks.create_task(self._run_one(running), name=f"group {group_id}")
        return running

    async def _run_one(self, running: RunningGroup) -> None:
        try:
            await running.run()
        finally:
            if self._loaded.get(running.group_id) is running:
                del self._loaded[running.group_id]

    def _has_room(self) -> bool:
        """Makes room if necessary: the group that was idle longest leaves, of those that may leave."""
        if len(self._loaded) < self._settings.groups_loaded:
            return True
        oldest = itertools.islice(self._loaded.values(), _LOOKS_FOR_ROOM)
        idle = next((running for running in oldest if running.is_idle), None)
        if idle is None:
            return False
        self._end_loaded(idle.group_id, GroupFault.NOT_COORDINATOR)
        return True

    def _end_loaded(self, group_id: str, fault: GroupFault) -> None:
        running = self._loaded.pop(group_id, None)
        if running is not None:
            running.end(fault)

    def _drop(self, group_ids: Iterable[str], fault: GroupFault) -> None:
        for group_id in group_ids:
            self._end_loaded(group_id, fault)

    # --- watching

    async def _watch_leases(self) -> None:
        ring = self._membership.ring
        while True:
            await asyncio.sleep(self._settings.group_lease_renew_s)
            self._end_idle()
            if self._membership.ring is not ring:
                ring = self._membership.ring
                moved = [group_id for group_id in self._loaded if not self._is_ours(ring, group_id)]
                self._drop(moved, GroupFault.NOT_COORDINATOR)
            try:
                await self._renew()
            except _AWAY as error:
                log.warning("leases of groups cannot be renewed", extra={"error": str(error)})

    async def _renew(self) -> None:
        """Asks Postgres for all groups at once which of them this agent still holds. Groups whose lease is
        over end, so that no member's silence counts while Postgres was away or this process stood still.
        """
        sent_s = self._clock()
        self._drop_overdue(sent_s)
        held = {group_id: running.coordinator_epoch for group_id, running in self._loaded.items()}
        try:
            if held:
                async with asyncio.timeout(self._settings.group_lease_s):
                    still = await self._groups.still_held(held)
                for group_id, config in still.items():
                    running = self._loaded.get(group_id)
                    if running is not None and running.coordinator_epoch == held[group_id]:
                        running.held_until_s = sent_s + self._settings.group_lease_s
                        running.configure(config)
                self.lost(
                    {group_id: held[group_id] for group_id in held.keys() - still.keys()},
                    GroupFault.NOT_COORDINATOR,
                )
        finally:
            self._drop_overdue(self._clock())

    def _drop_overdue(self, now_s: float) -> None:
        over = [group_id for group_id, running in self._loaded.items() if running.held_until_s <= now_s]
        self._drop(over, GroupFault.COORDINATOR_UNAVAILABLE)

    def _end_idle(self) -> None:
        before_s = self._clock() - self._settings.group_idle_s
        oldest = itertools.takewhile(lambda running: running.touched_s < before_s, self._loaded.values())
        self._drop([running.group_id for running in oldest if running.is_idle], GroupFault.NOT_COORDINATOR)

    async def _adopt(self) -> None:
        """Loads this agent's groups that have members. If those died together with the last coordinator, no
        other event would ever time them out, and the group would never become empty.
        """
        while True:
            await asyncio.sleep(self._settings.group_adopt_s)
            try:
                listed = await self._groups.list(with_members=True)
            except SequencerUnavailable as error:
                log.warning("groups cannot be listed", extra={"error": str(error)})
                continue
            for group in listed:
                if self.coordinates(group.group_id) and self.loaded(group.group_id) is None:
                    await self.group(group.group_id)

    async def _watch_topics(self) -> None:
        """Shows groups their topics again when these changed. Those with a regular expression are also shown
        them when the ACLs changed.
        """
        judged_by: object = None
        while True:
            await asyncio.sleep(self._settings.group_topics_s)
            acls = None if self._acls is None else self._acls()
            seen = [
                (running, running.seen, running.tenant)
                for running in self._loaded.values()
                if running.seen is not None
            ]
            if not seen:
                continue
            wanted: dict[str | None, list[TopicsWanted]] = {}
            for _, before, tenant in seen:
                wanted.setdefault(tenant, []).append(before.asked)
            try:
                now = {
                    tenant: await look_at(topics_of_tenant(self._topics, tenant), asked)
                    for tenant, asked in wanted.items()
                }
            except SequencerUnavailable as error:
                log.warning("topics of groups cannot be looked at", extra={"error": str(error)})
                continue
            for running, before, tenant in seen:
                again = now[tenant][before.asked]
                is_judged_again = before.asked.everything and acls is not judged_by
                if running.seen is before and (is_judged_again or again.topics != before.topics):
                    running.show(again)
            judged_by = acls


_DELETE_FAULTS = {
    DeleteOutcome.DELETED: None,
    DeleteOutcome.NOT_EMPTY: GroupFault.GROUP_NOT_EMPTY,
    DeleteOutcome.NOT_COORDINATOR: GroupFault.NOT_COORDINATOR,
}


class GroupMetrics(Collector):
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        groups = GaugeMetricFamily(
            "tidelog_groups", "Groups coordinated by this agent and in memory", labels=["protocol", "state"]
        )
        for (kind, state), count in sorted(self._coordinator.count_by_state().items()):
            groups.add_metric([kind, state], count)
        yield groups
