"""The example in `docs/segment-format.md`: it reads by the page's tables alone, and equals what the code
writes.
"""

import re
import struct
from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from storage.segments.segment import verify_segment
from tests.storage.builders import ORDERS, PAYMENTS, SEGMENT_ID, ARecord, a_batch, a_pending, a_segment

PAGE = Path(__file__).parents[3] / "docs" / "segment-format.md"


def example() -> bytes:
    found = re.search(r"```hexdump\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return b"".join(bytes.fromhex(line.split("  ")[1]) for line in found[1].splitlines())


def test_the_example_is_what_the_code_writes_and_verifies() -> None:
    _, data = a_segment(
        a_pending(ORDERS, 0, a_batch(ARecord(key=b"k", value=b"v"))),
        a_pending(PAYMENTS, 3, a_batch(ARecord(key=None, value=b"paid", headers=[(b"h", None)]))),
        writer="agent-1",
    )

    assert data == example()
    assert verify_segment(example()).writer == "agent-1"


def test_the_example_reads_as_the_tables_say() -> None:
    data = example()
    footer, length, checksum = struct.unpack(">QII", data[-24:-8])
    assert (data[:8], data[-8:]) == (b"TIDESEGM", b"TIDEFOOT")
    assert footer + length + 24 == len(data)
    assert crc32c(data[footer:-12]) == checksum

    version, writer_bytes = struct.unpack_from(">HH", data, 8)
    assert (version, data[28 : 28 + writer_bytes]) == (1, b"agent-1")
    assert data[12:28] == data[footer : footer + 16] == SEGMENT_ID.bytes
    assert struct.unpack_from(">I", data, 28 + writer_bytes)[0] == crc32c(data[: 28 + writer_bytes])

    (runs,) = struct.unpack_from(">I", data, footer + 18)
    entries = list(struct.iter_unpack(">16siQQQqqI", data[footer + 22 + writer_bytes : -24]))
    assert (runs, length) == (2, 22 + writer_bytes + 64 * runs)
    assert [(UUID(bytes=entry[0]), entry[1]) for entry in entries] == [(ORDERS, 0), (PAYMENTS, 3)]
    position = 32 + writer_bytes
    for _, _, start, size, records, earliest, latest, run_checksum in entries:
        assert (start, records, earliest, latest) == (position, 1, 1_700_000_000_000, 1_700_000_000_000)
        assert crc32c(data[start : start + size]) == run_checksum
        position += size
    assert position == footer
