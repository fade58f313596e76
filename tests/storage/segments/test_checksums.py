"""The checksum of a whole, computed from those of its parts, equals crc32c of the bytes."""

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.segments.segment import combined


@given(wholes=st.lists(st.lists(st.binary(max_size=300), max_size=6), max_size=6))
def test_checksums_of_parts_combine_to_that_of_the_whole(wholes: list[list[bytes]]) -> None:
    rows = [(number, crc32c(part), len(part)) for number, parts in enumerate(wholes) for part in parts]

    found = combined(np.array(rows, np.int64).reshape(-1, 3), len(wholes))

    assert found == [crc32c(b"".join(parts)) for parts in wholes]


def test_parts_of_any_length_combine() -> None:
    data = bytes(range(256)) * 4097
    for length in (1, 255, 256, 65_535, 65_536, 1_000_003, len(data) - 1):
        parts = [data[:length], data[length:]]
        rows = np.array([(0, crc32c(part), len(part)) for part in parts], np.int64)
        assert combined(rows, 1) == [crc32c(data)]
