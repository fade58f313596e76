"""Which batches readers of committed data leave out, compared with a model that looks at one batch after the
other.
"""

import random
from collections.abc import Sequence

import numpy as np

from storage.arrow.aborted_batches import (
    AbortedIndex,
    AbortedTransaction,
    are_markers,
    columns_of,
    left_out,
    overlapping,
)
from storage.batches.record_batch import index_batches, marker_batch
from storage.identifiers import Offset, ProducerId
from tests.storage.builders import ARecord, a_batch
from tests.support.seeds import seeds

TRANSACTIONAL = 0x10
PRODUCERS = [-(1 << 63), -1, 0, 7, 8, (1 << 63) - 1]


class History:
    """Batches of several producers, each in its transaction or in none, and how the transactions ended."""

    def __init__(self, chance: random.Random, batches: int) -> None:
        self.offset = chance.choice((0, 1000, 1 << 40))
        self.batches: list[tuple[int, bytes, int, bool, bool]] = []
        """Base offset, bytes, producer, whether it is a marker, whether it is transactional."""
        self.aborted: list[AbortedTransaction] = []
        self.aborted_offsets: set[int] = set()
        open_from: dict[int, list[int]] = {}
        for _ in range(batches):
            producer = ProducerId(chance.choice(PRODUCERS))
            what = chance.choice(("send", "send", "end", "plain", "idempotent"))
            if what == "send":
                self._add(producer, TRANSACTIONAL, chance.randint(1, 5))
                open_from.setdefault(producer, []).append(self.batches[-1][0])
            elif what == "end" and producer in open_from:
                sent = open_from.pop(producer)
                is_commit = chance.random() < 0.5
                if not is_commit:
                    entry = AbortedTransaction(Offset(self.offset), Offset(sent[0]), producer)
                    self.aborted.append(entry)
                    self.aborted_offsets |= set(sent)
                data = marker_batch(producer, 0, is_commit=is_commit, timestamp_ms=0)
                self.batches.append((self.offset, data, producer, True, True))
                self.offset += 1
            else:
                self._add(ProducerId(-1) if what == "plain" else producer, 0, chance.randint(1, 5))

    def _add(self, producer: int, attributes: int, records: int) -> None:
        data = a_batch(*[ARecord()] * records, attributes=attributes, producer=(producer, 0, 0))
        self.batches.append((self.offset, data, producer, False, attributes != 0))
        self.offset += records

    def expected(self, start: int, end: int) -> list[bool]:
        return [
            is_marker or offset in self.aborted_offsets
            for offset, _, _, is_marker, _ in self.batches[start:end]
        ]


def found(history: History, start: int, end: int, aborted: Sequence[AbortedTransaction]) -> list[bool]:
    some = history.batches[start:end]
    data = b"".join(batch[1] for batch in some)
    positions = np.ascontiguousarray(index_batches(data, 0, len(data))["position"])
    bases = np.array([batch[0] for batch in some], np.int64)
    assert are_markers(data, positions).tolist() == [batch[3] for batch in some]
    return [bool(is_out) for is_out in left_out(data, positions, bases, columns_of(aborted))]


def test_batches_of_aborted_transactions_and_markers_are_left_out_wherever_a_run_is_cut() -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    for _ in range(300):
        history = History(chance, chance.choice((0, 3, 30, 100)))
        start = chance.randint(0, len(history.batches))
        end = chance.randint(start, len(history.batches))
        if start == end:
            aborted = history.aborted
        else:
            next_offset = history.batches[end][0] if end < len(history.batches) else history.offset
            aborted = list(overlapping(history.aborted, history.batches[start][0], next_offset))

        expected = history.expected(start, end)
        assert found(history, start, end, aborted) == expected, seed
        assert found(history, start, end, history.aborted) == expected, seed  # more do no harm


def test_a_marker_at_the_first_offset_ends_a_transaction_before_the_batches() -> None:
    history = History(random.Random(0), 0)
    history._add(7, TRANSACTIONAL, 1)
    first = history.batches[0][0]
    ended_before = AbortedTransaction(Offset(first), Offset(first - 10), ProducerId(7))
    assert found(history, 0, 1, [ended_before]) == [False]
    assert found(history, 0, 1, [AbortedTransaction(Offset(first + 1), Offset(first), ProducerId(7))]) == [
        True
    ]
    assert overlapping([ended_before], first, first + 1) == ()


def test_an_index_finds_what_overlaps_each_range() -> None:
    [seed] = seeds(1)
    chance = random.Random(seed)
    for _ in range(300):
        aborted = sorted(
            AbortedTransaction(Offset(last), Offset(chance.randint(0, last - 1)), ProducerId(last))
            for last in chance.sample(range(1, 100), chance.choice((0, 1, 5, 50)))
        )
        index = AbortedIndex(aborted)
        for _ in range(20):
            first, end = sorted(chance.choices(range(-1, 102), k=2))
            assert index.overlapping(first, end) == overlapping(aborted, first, end), seed


def test_an_index_finds_few_entries_for_each_of_many_runs() -> None:
    """A thousand runs and 20,000 entries, of which the last began before all."""
    aborted = [AbortedTransaction(Offset(2 * n + 1), Offset(2 * n), ProducerId(n)) for n in range(20_000)]
    aborted.append(AbortedTransaction(Offset(50_000), Offset(0), ProducerId(7)))

    index = AbortedIndex(aborted)
    found = [index.overlapping(first, first + 40) for first in range(0, 40_000, 40)]

    assert [len(each) for each in found] == [21] * 1000
