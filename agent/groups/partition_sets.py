"""Sets of partitions by what they belong to: a topic in the consumer protocol (KIP-848), a subtopology in the
streams protocol (KIP-1071). Also one member's steps from the set that it has to its target. Pure.

Each key of such a set has at least one partition. A member's partitions are *assigned* (the member was told
to have them) or *revoking* (it was told to give them up and has not confirmed that). It owns both.

Promises of `next_step`:
- A partition is assigned to a member only if `is_free` says that no other member owns it.
- A member is done only if it owns nothing that the target takes from it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage.identifiers import Partition

K = TypeVar("K")


def partitions_of(sets: Mapping[K, frozenset[Partition]]) -> Iterator[tuple[K, Partition]]:
    for key, partitions in sets.items():
        for partition in partitions:
            yield key, partition


def united(
    one: Mapping[K, frozenset[Partition]], other: Mapping[K, frozenset[Partition]]
) -> Mapping[K, frozenset[Partition]]:
    if not other:
        return one
    return {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in one.keys() | other.keys()}


def common(
    one: Mapping[K, frozenset[Partition]], other: Mapping[K, frozenset[Partition]]
) -> Mapping[K, frozenset[Partition]]:
    return _tidy({key: partitions & other[key] for key, partitions in one.items() if key in other})


def without(
    one: Mapping[K, frozenset[Partition]], other: Mapping[K, frozenset[Partition]]
) -> Mapping[K, frozenset[Partition]]:
    return _tidy({key: partitions - other.get(key, frozenset()) for key, partitions in one.items()})


def chosen(
    sets: Mapping[K, frozenset[Partition]], choose: Callable[[K, Partition], bool]
) -> Mapping[K, frozenset[Partition]]:
    """Returns the partitions that `choose` accepts."""
    return _tidy(
        {
            key: frozenset(partition for partition in partitions if choose(key, partition))
            for key, partitions in sets.items()
        }
    )


def is_part(one: Mapping[K, frozenset[Partition]], other: Mapping[K, frozenset[Partition]]) -> bool:
    """True if all of `one` is in `other`."""
    return all(partitions <= other.get(key, frozenset()) for key, partitions in one.items())


def _tidy(sets: Mapping[K, frozenset[Partition]]) -> Mapping[K, frozenset[Partition]]:
    return {key: partitions for key, partitions in sets.items() if partitions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[K]):
    """What a member has after a step. `is_done`: it has reached the target's epoch."""

    assigned: Mapping[K, frozenset[Partition]]
    revoking: Mapping[K, frozenset[Partition]]
    is_done: bool


def next_step(
    assigned: Mapping[K, frozenset[Partition]],
    revoking: Mapping[K, frozenset[Partition]],
    target: Mapping[K, frozenset[Partition]],
    owned: Mapping[K, frozenset[Partition]] | None,
    is_free: Callable[[K, Partition], bool],
) -> Step[K] | None:
    """Returns the member's next step to its target. None: it must first confirm what it gives up. `owned`:
    the partitions that it says it still has. None: it said nothing, which confirms nothing.
    """
    if revoking and _still_has(owned, revoking):
        return None
    kept = common(assigned, target)
    to_revoke = without(assigned, target)
    if to_revoke and _still_has(owned, to_revoke):
        return Step(assigned=kept, revoking=to_revoke, is_done=False)

    def may_take(key: K, partition: Partition) -> bool:
        return is_free(key, partition) or partition in revoking.get(key, ())

    taken = chosen(without(target, kept), may_take)
    return Step(assigned=united(kept, taken), revoking={}, is_done=True)


def _still_has(
    owned: Mapping[K, frozenset[Partition]] | None, partitions: Mapping[K, frozenset[Partition]]
) -> bool:
    return owned is None or bool(common(owned, partitions))


# --- as text, for documents


def ranges(partitions: frozenset[Partition]) -> str:
    """Writes partitions as ranges ("0-5,7")."""
    runs: list[list[int]] = []
    for partition in sorted(partitions):
        if runs and runs[-1][1] == partition - 1:
            runs[-1][1] = partition
        else:
            runs.append([partition, partition])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_ranges(text: str) -> frozenset[Partition]:
    numbers: list[Partition] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        numbers.extend(map(Partition, range(int(first), int(last or first) + 1)))
    return frozenset(numbers)
