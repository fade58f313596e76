"""Which member of a streams group gets which tasks (KIP-1071). Pure.

A *process* is one instance of Kafka Streams. Its members are its threads; they share its state directory.

Promises:
- Each task is active at exactly one member.
- Active tasks per member differ by at most one.
- A task has `standbys` standby copies, or as many as there are other processes. No process has two copies of
  a task. Tasks without state have none.
- Sticky: a member keeps its active tasks unless the balance takes them from it. A member that leaves costs
  the others none of theirs. The same input as before gives the same result.
- A task that moves goes to a process that has its state, if one has room.

Standby copies are balanced too, but less strictly: copies that exist stay where they are before the rest go
to the processes with the fewest tasks per member.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from agent.groups.events import Tasks, TaskSets
from agent.groups.partition_sets import partitions_of
from storage.identifiers import Partition

Task = tuple[str, Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A member that gets tasks. `target`: the tasks that it was to have before."""

    member_id: str
    process_id: str
    target: Tasks


def assign_tasks(
    workers: Sequence[Worker], task_counts: Mapping[str, int], stateful: Set[str], standbys: int
) -> dict[str, Tasks]:
    """Returns the tasks of each member. `task_counts`: tasks per subtopology. `stateful`: the subtopologies
    with changelogs.
    """
    if not workers:
        return {}
    tasks = [
        (subtopology, Partition(number))
        for subtopology in sorted(task_counts)
        for number in range(task_counts[subtopology])
    ]
    listed = sorted(workers, key=lambda worker: worker.member_id)
    active = _assign_active(listed, tasks)
    copies = _Copies(listed, active)
    if standbys:
        copies.assign([task for task in tasks if task[0] in stateful], standbys)
    return {
        worker.member_id: Tasks(
            active=_sets(active[worker.member_id]), standby=_sets(copies.of_member[worker.member_id])
        )
        for worker in listed
    }


def _sets(tasks: Set[Task]) -> TaskSets:
    found: dict[str, set[Partition]] = {}
    for subtopology, number in tasks:
        found.setdefault(subtopology, set()).add(number)
    return {subtopology: frozenset(numbers) for subtopology, numbers in found.items()}


# --- active tasks


def _assign_active(workers: Sequence[Worker], tasks: Sequence[Task]) -> dict[str, set[Task]]:
    least, larger = divmod(len(tasks), len(workers))
    unassigned = set(tasks)
    active: dict[str, set[Task]] = {}
    had = {worker.member_id: sorted(partitions_of(worker.target.active)) for worker in workers}
    # Who had most before keeps the one task more that some members have.
    for worker in sorted(workers, key=lambda worker: -len(had[worker.member_id])):
        kept = [task for task in had[worker.member_id] if task in unassigned]
        room = least + (1 if larger and len(kept) > least else 0)
        larger -= room - least
        active[worker.member_id] = set(kept[:room])
        unassigned.difference_update(kept[:room])
    rooms = _Rooms({member_id: len(mine) for member_id, mine in active.items()}, least, larger)
    for task, preferred in _with_preferred(workers, sorted(unassigned)):
        member_id = next(filter(rooms.has_room, preferred), None) or rooms.emptiest()
        rooms.take(member_id)
        active[member_id].add(task)
    return active


def _with_preferred(workers: Sequence[Worker], tasks: Sequence[Task]) -> Iterator[tuple[Task, Sequence[str]]]:
    """Yields each task with the members whose process has its state: first those that keep a standby copy."""
    keepers: dict[Task, list[str]] = defaultdict(list)
    processes: dict[Task, list[str]] = defaultdict(list)
    threads: dict[str, list[str]] = defaultdict(list)
    for worker in workers:
        threads[worker.process_id].append(worker.member_id)
        for task in partitions_of(worker.target.standby):
            keepers[task].append(worker.member_id)
            processes[task].append(worker.process_id)
        for task in partitions_of(worker.target.active):
            processes[task].append(worker.process_id)
    for task in tasks:
        yield task, [*keepers[task], *(other for process in processes[task] for other in threads[process])]


class _Rooms:
    """How many tasks each member may still take: up to `least`, and `larger` members one more."""

    def __init__(self, loads: dict[str, int], least: int, larger: int) -> None:
        self._loads = loads
        self._least = least
        self._larger = larger
        self._heap = [(load, member_id) for member_id, load in loads.items()]
        heapq.heapify(self._heap)

    def has_room(self, member_id: str) -> bool:
        load = self._loads[member_id]
        return load < self._least or (load == self._least and self._larger > 0)

    def take(self, member_id: str) -> None:
        self._larger -= self._loads[member_id] == self._least
        self._loads[member_id] += 1
        heapq.heappush(self._heap, (self._loads[member_id], member_id))

    def emptiest(self) -> str:
        while self._loads[self._heap[0][1]] != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][1]


# --- standby copies


class _Copies:
    def __init__(self, workers: Sequence[Worker], active: Mapping[str, Set[Task]]) -> None:
        self.of_member: dict[str, set[Task]] = {worker.member_id: set() for worker in workers}
        self._threads: dict[str, list[str]] = defaultdict(list)
        self._loads = {worker.member_id: len(active[worker.member_id]) for worker in workers}
        self._process_loads: dict[str, int] = defaultdict(int)
        self._holders: dict[Task, set[str]] = {}
        """The processes that have the task, active or as a copy."""
        self._before: dict[Task, list[tuple[str, str]]] = defaultdict(list)
        """The members that had a copy, or had the task active, with their processes."""
        for worker in workers:
            self._threads[worker.process_id].append(worker.member_id)
            self._process_loads[worker.process_id] += len(active[worker.member_id])
            for task in active[worker.member_id]:
                self._holders[task] = {worker.process_id}
            for task in partitions_of(worker.target.standby):
                self._before[task].append((worker.member_id, worker.process_id))
        for worker in workers:
            for task in partitions_of(worker.target.active):
                self._before[task].append((worker.member_id, worker.process_id))
        self._heap: list[tuple[float, str]] = [(self._load(process), process) for process in self._threads]
        heapq.heapify(self._heap)

    def assign(self, tasks: Sequence[Task], standbys: int) -> None:
        copies = min(standbys, len(self._threads) - 1)
        missing = dict.fromkeys(tasks, copies)
        quotas = self._quotas(copies * len(tasks))
        for task in tasks:
            for member_id, process_id in self._before[task]:
                if missing[task] and quotas[process_id] and process_id not in self._holders[task]:
                    quotas[process_id] -= 1
                    missing[task] -= 1
                    self._give(task, member_id, process_id)
        for task in tasks:
            for _ in range(missing[task]):
                process_id = self._emptiest_without(task)
                member_id = min(self._threads[process_id], key=lambda member: (self._loads[member], member))
                self._give(task, member_id, process_id)

    def _quotas(self, copies: int) -> dict[str, int]:
        """Returns how many copies each process may keep, by its number of members."""
        members = len(self.of_member)
        return {process: -(-copies * len(threads) // members) for process, threads in self._threads.items()}

    def _give(self, task: Task, member_id: str, process_id: str) -> None:
        self.of_member[member_id].add(task)
        self._holders[task].add(process_id)
        self._loads[member_id] += 1
        self._process_loads[process_id] += 1
        heapq.heappush(self._heap, (self._load(process_id), process_id))

    def _emptiest_without(self, task: Task) -> str:
        """There is always one: there are more processes than copies."""
        aside: list[tuple[float, str]] = []
        while True:
            load, process_id = heapq.heappop(self._heap)
            if load != self._load(process_id):
                continue
            aside.append((load, process_id))
            if process_id not in self._holders[task]:
                for entry in aside:
                    heapq.heappush(self._heap, entry)
                return process_id

    def _load(self, process_id: str) -> float:
        return self._process_loads[process_id] / len(self._threads[process_id])
