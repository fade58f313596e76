"""The group coordinator of an agent: which groups are loaded, since when it holds them, when they leave
(docs/design/groups.md#coordinators).

Promises: only groups that the ring gives to this agent are answered for; a group is claimed in Postgres, which fences
every coordinator before, ahead of its first answer; an agent that lost a group, its place in the ring or Postgres
answers so within the group's lease, to waiting requests too; loaded groups, loads at a time and queued requests are
bounded. A request to a loaded group touches no database unless it changes the group.
"""

import asyncio
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from typing import TypeVar

from agent.groups.consumer.topics_of_groups import look_at
from agent.groups.coordinator.machine import MachineMaker
from agent.groups.coordinator.running_group import Request, RunningGroup, Surroundings
from agent.groups.events import Answer, GroupFault, Token
from agent.groups.settings import GroupSettings
from agent.metrics import Metrics
from agent.topic_directory import TopicDirectory
from cache_ring.ring.membership import Membership
from cache_ring.ring.ring import Ring
from sequencer.database.database import CommitOutcomeUnknown, SequencerUnavailable
from sequencer.groups.groups import DeleteOutcome, Groups, can_be_id

log = logging.getLogger("tidelog")

_Answer = TypeVar("_Answer", bound=Answer)

_AWAY = (SequencerUnavailable, CommitOutcomeUnknown, TimeoutError)
_LOOKS_FOR_ROOM = 64
"""Groups looked at, oldest first, for one that may leave when another needs its place."""


class Coordinator:
    """`run` owns every group's task. Groups are asked through `ask`, or held by `group` for what needs no answer of the
    machine."""

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
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._membership = membership
        self._settings = settings
        self._metrics = metrics
        self._make_machine = make_machine
        self._clock = clock
        self._around = Surroundings(
            groups=groups, topics=topics, settings=settings, metrics=metrics, clock=clock, may_serve=self._may_serve
        )  # fmt: skip
        self._loaded: OrderedDict[str, RunningGroup] = OrderedDict()
        self._loading: dict[str, tuple[bool, asyncio.Task[RunningGroup | GroupFault]]] = {}
        self._loads = asyncio.Semaphore(settings.group_loads)
        self._failed_loads = 0
        self._tokens = itertools.count(1)
        self._tasks: asyncio.TaskGroup | None = None
        self._draining = False
        self._changes = 0
        """How often another Postgres answered than before."""

    # --- for handlers

    def next_token(self) -> Token:
        return Token(next(self._tokens))

    def coordinates(self, group_id: str) -> bool:
        """Whether the ring gives the group to this agent."""
        return self._is_ours(self._membership.ring, group_id)

    def loaded(self, group_id: str) -> RunningGroup | None:
        """The group if it is in memory; nothing is loaded for this."""
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
        """The machine's answer, which may take minutes; or why there is none. Cancelled: nobody waits any more.

        `when_queued` is called once the machine is sure to handle the event before all that come later.
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
        assert isinstance(answered, answer | GroupFault), f"{type(event).__name__} got {type(answered).__name__}"
        return answered

    async def group(self, group_id: str, *, create: bool = False) -> RunningGroup | GroupFault:
        """The group, claimed and loaded; GROUP_NOT_FOUND if there is none and it is not to be created."""
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
                continue  # whoever began the load did not want it created
            return found

    async def delete(self, group_id: str) -> GroupFault | None:
        """Delete a group without members, and its offsets. None: it is gone."""
        running = await self.group(group_id)
        if isinstance(running, GroupFault):
            return running
        fault = running.machine.check_delete()
        if fault is not None:
            return fault
        self._end_loaded(group_id, GroupFault.NOT_COORDINATOR)  # whoever joins from now on makes a new group
        try:
            outcome = await self._groups.delete(group_id, running.coordinator_epoch)
        except (SequencerUnavailable, CommitOutcomeUnknown) as error:
            log.warning("group cannot be deleted", extra={"group": group_id, "error": str(error)})
            return GroupFault.COORDINATOR_UNAVAILABLE
        return _DELETE_FAULTS[outcome]

    def lost(self, epochs: Mapping[str, int], fault: GroupFault) -> None:
        """Unload groups that these epochs do not hold for certain any more: the next request claims them anew."""
        for group_id, epoch in epochs.items():
            running = self._loaded.get(group_id)
            if running is not None and running.coordinator_epoch == epoch:
                self._end_loaded(group_id, fault)

    def forget_all(self) -> None:
        """Another Postgres answers than before: the next request claims its group there."""
        self._changes += 1
        self._drop(list(self._loaded), GroupFault.COORDINATOR_UNAVAILABLE)

    def count_by_state(self) -> Counter[tuple[str, str]]:
        """Loaded groups by protocol and state."""
        return Counter((running.machine.kind, running.machine.state.value) for running in self._loaded.values())

    # --- for the composition root

    async def run(self) -> None:
        """Keep what is loaded true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._watch_leases(), name="group leases")
            tasks.create_task(self._watch_topics(), name="group topics")
            tasks.create_task(self._adopt(), name="orphaned groups")

    def drain(self) -> None:
        """Answer whoever waits that the group is coordinated elsewhere, and all that come: clients move at once."""
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
            # In a context of its own: it works for all members, and not for the client that came first.
            task = self._tasks.create_task(self._load(group_id, create), name=f"load {group_id}", context=Context())
            loading = self._loading[group_id] = (create, task)
            task.add_done_callback(lambda _: self._loading.pop(group_id, None))
        return loading

    async def _load(self, group_id: str, create: bool) -> RunningGroup | GroupFault:
        if len(self._loading) > self._settings.group_queue_events or not self._has_room():
            return GroupFault.OVERLOADED
        failed_before = self._failed_loads
        async with self._loads:
            if self._failed_loads != failed_before:
                return GroupFault.COORDINATOR_UNAVAILABLE  # one that was waited for failed: so would this one
            try:
                return await self._claim(group_id, create)
            except (SequencerUnavailable, CommitOutcomeUnknown) as error:
                self._failed_loads += 1
                log.warning("group cannot be loaded", extra={"group": group_id, "error": str(error)})
                return GroupFault.COORDINATOR_UNAVAILABLE
            except Exception:
                log.exception("loading a group broke", extra={"group": group_id})
                return GroupFault.COORDINATOR_UNAVAILABLE

    async def _claim(self, group_id: str, create: bool) -> RunningGroup | GroupFault:
        self_, sent_s, changes = self._membership.self_, self._clock(), self._changes
        if self_ is None:
            return GroupFault.NOT_COORDINATOR
        claimed = await self._groups.claim(group_id, self_.node_id, create=create)
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
            self._around,
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
        """Make room if need be: by the group that was longest not asked for, of those that may leave."""
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
        """Ask Postgres for all groups at once which of them are still this agent's. Those whose lease is over end, so
        that no member's silence is counted while Postgres was away or this process stood still."""
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
                    {group_id: held[group_id] for group_id in held.keys() - still.keys()}, GroupFault.NOT_COORDINATOR
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
        """Load this agent's groups that have members: if those died together with the last coordinator, nobody else
        would ever count their silence, and the group would never be empty."""
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
        while True:
            await asyncio.sleep(self._settings.group_topics_s)
            seen = [(running, running.seen) for running in self._loaded.values() if running.seen is not None]
            if not seen:
                continue
            try:
                now = await look_at(self._topics, [before.asked for _, before in seen])
            except SequencerUnavailable as error:
                log.warning("topics of groups cannot be looked at", extra={"error": str(error)})
                continue
            for running, before in seen:
                again = now[before.asked]
                if running.seen is before and again.topics != before.topics:
                    running.show(again)


_DELETE_FAULTS = {
    DeleteOutcome.DELETED: None,
    DeleteOutcome.NOT_EMPTY: GroupFault.GROUP_NOT_EMPTY,
    DeleteOutcome.NOT_COORDINATOR: GroupFault.NOT_COORDINATOR,
}
