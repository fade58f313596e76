"""Arrays arrive in Postgres as they were, however many numbers they hold."""

import struct

import numpy as np
import pytest

from sequencer.array_parameters import Int4Array, Int4Column, Int8Array, Int8Column
from sequencer.client import Sequencer

ENDS = {Int4Array: 2**31, Int8Array: 2**63}


@pytest.mark.parametrize("kind", [Int4Array, Int8Array])
async def test_numbers_arrive_as_they_were(sequencer: Sequencer, kind: type[Int4Array] | type[Int8Array]) -> None:
    end = ENDS[kind]
    for length in (0, 1, 2, 23, 24, 25, 26, 1000):
        numbers = kind([(-end, -1, 0, 1, end - 1)[n % 5] for n in range(length)])
        [row] = await sequencer.database.fetch("SELECT %(numbers)s AS numbers", numbers=numbers)
        assert row.numbers == list(numbers)


@pytest.mark.parametrize("kind", [Int4Column, Int8Column])
async def test_columns_arrive_as_they_were(sequencer: Sequencer, kind: type[Int4Column] | type[Int8Column]) -> None:
    end = 2**31 if kind is Int4Column else 2**63
    for length in (0, 1, 1000):
        numbers = np.resize(np.array([-end, -1, 0, 1, end - 1], np.int64), length)
        [row] = await sequencer.database.fetch("SELECT %(numbers)s AS numbers", numbers=kind(numbers))
        assert row.numbers == numbers.tolist()


async def test_a_number_that_does_not_fit_is_refused(sequencer: Sequencer) -> None:
    for number in (2**31, -(2**31) - 1):
        with pytest.raises(OverflowError):
            await sequencer.database.fetch("SELECT %(numbers)s AS numbers", numbers=Int4Column(np.array([0, number])))
    for length in (1, 100):
        with pytest.raises((OverflowError, struct.error)):
            await sequencer.database.fetch("SELECT %(numbers)s AS numbers", numbers=Int4Array([2**31] * length))
