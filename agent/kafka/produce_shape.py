"""How many partitions a Produce request names, read from its bytes without building anything.

A frame of a hundred megabytes may name tens of millions of empty partitions; decoded they would take gigabytes. So what
is large is counted before it is decoded. Every other API has a limit in bytes that makes this unnecessary.
"""

from typing import Final

FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13


class TooManyPartitions(Exception):
    """The request names more partitions than are allowed."""


class _Cursor:
    """Reads lengths and skips what they measure. Raises IndexError or ValueError past the end."""

    __slots__ = ("_data", "position")

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self.position = position

    def skip(self, count: int) -> None:
        self.position += count
        if count < 0 or self.position > len(self._data):
            raise ValueError(f"a length reaches {self.position - len(self._data)} bytes past the end")

    def signed(self, size: int) -> int:
        start = self.position
        self.skip(size)
        return int.from_bytes(self._data[start : self.position], "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ValueError("a varint is too long")

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def check_partition_count(frame: bytes | memoryview, body_start: int, version: int, most: int) -> None:
    """Raises TooManyPartitions; a request that is cut short is left to the decoder to refuse."""
    cursor = _Cursor(memoryview(frame), body_start)
    try:
        _walk(cursor, version, most)
    except (IndexError, ValueError):
        return


def _walk(cursor: _Cursor, version: int, most: int) -> None:
    flexible = version >= FIRST_FLEXIBLE_VERSION
    _skip_sized(cursor, flexible, 2)  # transactional id
    cursor.skip(2 + 4)  # acks, timeout
    partitions = 0
    for _ in range(_count(cursor, flexible)):
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            cursor.skip(16)
        else:
            _skip_sized(cursor, flexible, 2)
        # A topic without partitions costs as much as one with a partition.
        in_topic = _count(cursor, flexible)
        partitions += max(1, in_topic)
        if partitions > most:
            raise TooManyPartitions(f"a Produce request names more than {most} partitions")
        for _ in range(in_topic):
            cursor.skip(4)  # index
            _skip_sized(cursor, flexible, 4)  # records
            if flexible:
                cursor.tags()
        if flexible:
            cursor.tags()


def _count(cursor: _Cursor, flexible: bool) -> int:
    return max(0, cursor.varint() - 1 if flexible else cursor.signed(4))


def _skip_sized(cursor: _Cursor, flexible: bool, length_bytes: int) -> None:
    """Skip a string or bytes, nullable or not."""
    length = cursor.varint() - 1 if flexible else cursor.signed(length_bytes)
    cursor.skip(max(0, length))
