"""The tasks that members of a streams group get: each once, balanced, sticky, copies on other processes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.events import Tasks
from agent.groups.partition_sets import partitions_of
from agent.groups.streams.task_assignor import Worker, assign_tasks
from storage.identifiers import Partition

COUNTS = st.dictionaries(st.sampled_from(["0", "1", "2"]), st.integers(1, 12), min_size=1)
PROCESSES = st.lists(st.integers(0, 4), min_size=1, max_size=9)


def workers_on(processes: Sequence[int]) -> list[Worker]:
    return [
        Worker(member_id=f"m{number}", process_id=f"p{process}", target=Tasks())
        for number, process in enumerate(processes)
    ]


def after(workers: Sequence[Worker], assigned: Mapping[str, Tasks]) -> list[Worker]:
    return [replace(worker, target=assigned[worker.member_id]) for worker in workers]


def owners(assigned: Mapping[str, Tasks]) -> dict[tuple[str, Partition], str]:
    found = [(task, member) for member, tasks in assigned.items() for task in partitions_of(tasks.active)]
    assert len(dict(found)) == len(found), "a task is active twice"
    return dict(found)


def check(
    workers: Sequence[Worker], counts: Mapping[str, int], assigned: Mapping[str, Tasks], copies: int
) -> None:
    process_of = {worker.member_id: worker.process_id for worker in workers}
    all_tasks = {(part, Partition(number)) for part, count in counts.items() for number in range(count)}
    active = owners(assigned)
    assert active.keys() == all_tasks
    loads = [sum(1 for _ in partitions_of(tasks.active)) for tasks in assigned.values()]
    assert max(loads) - min(loads) <= 1
    holders = Counter((task, process_of[member]) for task, member in active.items())
    standby = Counter[tuple[str, Partition]]()
    for member, tasks in assigned.items():
        for task in partitions_of(tasks.standby):
            holders[task, process_of[member]] += 1
            standby[task] += 1
    assert max(holders.values()) == 1, "a process has two copies of a task"
    wanted = min(copies, len(set(process_of.values())) - 1)
    assert all(standby[task] == (wanted if task[0] != "2" else 0) for task in all_tasks)


@given(PROCESSES, COUNTS, st.integers(0, 3), st.integers(0, 2**32))
def test_each_task_is_active_once_and_its_copies_are_elsewhere_through_joins_and_leaves(
    processes: list[int], counts: dict[str, int], copies: int, seed: int
) -> None:
    chance, stateful = Random(seed), {"0", "1"}
    workers = workers_on(processes)
    for _ in range(4):
        assigned = assign_tasks(workers, counts, stateful, copies)
        check(workers, counts, assigned, copies)
        workers = after(workers, assigned)
        if len(workers) > 1 and chance.random() < 0.5:
            workers.remove(chance.choice(workers))
        else:
            name = f"n{chance.randrange(10**9)}"
            workers.append(Worker(member_id=name, process_id=f"p{chance.randrange(6)}", target=Tasks()))


@given(PROCESSES, COUNTS, st.integers(0, 2))
def test_nothing_moves_without_a_reason(processes: list[int], counts: dict[str, int], copies: int) -> None:
    workers = workers_on(processes)
    assigned = assign_tasks(workers, counts, {"0", "1"}, copies)
    for _ in range(3):  # copies that had no room at first may move once to their final place
        workers = after(workers, assigned)
        again = assign_tasks(workers, counts, {"0", "1"}, copies)
        assert owners(again) == owners(assigned)
        settled, assigned = again == assigned, again
    assert settled


@given(PROCESSES.filter(lambda processes: len(processes) > 1), COUNTS, st.integers(0, 2), st.data())
def test_members_keep_their_active_tasks_when_another_leaves(
    processes: list[int], counts: dict[str, int], copies: int, data: st.DataObject
) -> None:
    workers = workers_on(processes)
    before = assign_tasks(workers, counts, {"0"}, copies)
    gone = data.draw(st.sampled_from(workers))
    left = [worker for worker in after(workers, before) if worker.member_id != gone.member_id]

    now = owners(assign_tasks(left, counts, {"0"}, copies))

    assert all(now[task] == member for task, member in owners(before).items() if member != gone.member_id)


@given(PROCESSES, COUNTS)
def test_a_newcomer_takes_no_more_than_its_part(processes: list[int], counts: dict[str, int]) -> None:
    workers = workers_on(processes)
    before = owners(assigned := assign_tasks(workers, counts, set(), 0))
    newcomer = Worker(member_id="new", process_id="new", target=Tasks())

    now = owners(assign_tasks([*after(workers, assigned), newcomer], counts, set(), 0))

    moved = [task for task in before if before[task] != now[task]]
    assert all(now[task] == "new" for task in moved)


def test_a_task_goes_to_the_process_that_has_a_copy_of_its_state() -> None:
    workers = workers_on([0, 1, 2])
    assigned = assign_tasks(workers, {"0": 3}, {"0"}, 1)
    copies = {task: member for member, tasks in assigned.items() for task in partitions_of(tasks.standby)}
    [lost] = [task for task, member in owners(assigned).items() if member == "m0"]
    left = [worker for worker in after(workers, assigned) if worker.member_id != "m0"]

    now = owners(assign_tasks(left, {"0": 3}, {"0"}, 1))

    assert now[lost] == copies[lost]


def test_no_members_have_no_tasks() -> None:
    assert assign_tasks([], {"0": 3}, {"0"}, 1) == {}
