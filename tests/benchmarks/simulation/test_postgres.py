"""Row locks, the log and failovers of the modelled Postgres."""

from functools import partial

import numpy as np
import pytest

from benchmarks.simulation.calibration import CommitCost
from benchmarks.simulation.combining import Combiner
from benchmarks.simulation.events import Cores, EventLoop
from benchmarks.simulation.postgres import Postgres, PostgresPlace, RowLocks

_COST = CommitCost(
    per_commit_s=0.001,
    per_batch_s=0.0,
    per_run_s=0.0,
    log_bytes_per_commit=100.0,
    log_bytes_per_batch=0.0,
    log_bytes_per_run=0.0,
    sync_s=0.002,
)


def _postgres(loop: EventLoop, *, cores: int = 8, standby_s: float = 0.0) -> Postgres:
    place = PostgresPlace(log_bytes_per_s=1e9, standby_s=standby_s)
    return Postgres(loop, Cores(loop, cores), _COST, place, np.random.default_rng(1))


def test_a_waiter_holds_what_it_got_before_the_row_it_waits_for() -> None:
    locks, taken = RowLocks(), list[str]()
    locks.take([2], lambda: taken.append("holder of 2"))
    locks.take([1, 2, 3], lambda: taken.append("waits for 2, holds 1"))
    locks.take([1], lambda: taken.append("waits for 1"))
    locks.take([3], lambda: taken.append("3 is free"))

    assert taken == ["holder of 2", "3 is free"]
    locks.release([3])
    locks.release([2])
    assert taken[2:] == ["waits for 2, holds 1"]
    locks.release([1, 2, 3])
    assert taken[3:] == ["waits for 1"]


def test_commits_of_one_partition_follow_one_another_and_those_of_others_do_not() -> None:
    loop, ended = EventLoop(), dict[str, float]()
    postgres = _postgres(loop, standby_s=0.1)

    def note(name: str) -> None:
        ended[name] = loop.now_s

    for name, rows in (("first", [1, 5]), ("second", [5, 9]), ("other", [7])):
        postgres.commit(1, len(rows), rows, partial(note, name))

    loop.run_until(1.0)

    assert ended["other"] < 0.12
    assert ended["second"] > ended["first"] + 0.1


def test_syncs_are_shared_by_who_came_before_they_began() -> None:
    loop = EventLoop()
    postgres = _postgres(loop)
    for row in range(50):
        postgres.commit(1, 1, [row], lambda: None)

    loop.run_until(1.0)

    assert postgres.commits == 50
    assert postgres.log.syncs < 10


def test_every_commit_is_known_once_after_a_failover() -> None:
    loop, known = EventLoop(), list[int]()
    postgres = _postgres(loop)
    for number in range(20):
        loop.at(
            number * 0.01, postgres.commit, 1, 1, [number % 3], lambda number=number: known.append(number)
        )
    loop.at(0.1, postgres.fail_over, 5.0)

    loop.run_until(5.0)
    assert len(known) < 20
    loop.run_until(20.0)

    assert sorted(known) == list(range(20))


def test_one_committer_waits_for_no_lock() -> None:
    loop, known = EventLoop(), list[int]()
    postgres = _postgres(loop, standby_s=0.05)
    combiner = Combiner(loop, postgres)
    for number in range(30):
        loop.at(
            number * 0.002, combiner.commit, 1, 2, [0, number], lambda number=number: known.append(number)
        )

    loop.run_until(1.0)

    assert known == list(range(30))
    assert postgres.locks.waits == 0
    assert postgres.commits == pytest.approx(3, abs=1)
