"""Arrays arrive in Postgres as they were, however many numbers they hold."""

import struct

import pytest

from sequencer.client import Sequencer
from sequencer.database.array_parameters import Int4Array, Int8Array

ENDS = {Int4Array: 2**31, Int8Array: 2**63}


@pytest.mark.parametrize("kind", [Int4Array, Int8Array])
async def test_numbers_arrive_as_they_were(
    sequencer: Sequencer, kind: type[Int4Array] | type[Int8Array]
) -> None:
    end = ENDS[kind]
    for length in (0, 1, 2, 23, 24, 25, 26, 1000):
        numbers = kind([(-end, -1, 0, 1, end - 1)[n % 5] for n in range(length)])
        [row] = await sequencer.database.run("SELECT %(numbers)s AS numbers", numbers=numbers)
        assert row.numbers == list(numbers)


async def test_a_number_that_does_not_fit_is_refused(sequencer: Sequencer) -> None:
    for length in (1, 100):
        with pytest.raises((OverflowError, struct.error)):
            await sequencer.database.run("SELECT %(numbers)s AS numbers", numbers=Int4Array([2**31] * length))
