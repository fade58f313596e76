"""A recompressed batch has the same records."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from storage.batches.batch_validation import (
    BatchFault,
    BatchLimits,
    InvalidBatch,
    plain_records,
    validate_produced,
)
from storage.batches.produced_batches import recompressed
from storage.batches.record_batch import Compression
from tests.agent.running import a_batch

LIMITS = BatchLimits()
VALUES = [b"value %d" % number + b"x" * 200 for number in range(50)]


@pytest.mark.parametrize(("sent", "kept"), list(itertools.product(Compression, Compression)))
def test_a_recompressed_batch_differs_only_in_its_compression(sent: Compression, kept: Compression) -> None:
    batch = validate_produced(a_batch(*VALUES, compression=sent, producer=(7, 3, 12)), LIMITS)

    found = recompressed(batch, kept, LIMITS)

    again = validate_produced(found.data, LIMITS)  # its checksum, its lengths and every record
    assert again == found
    assert found.header.compression is kept
    unlike: dict[str, Any] = {"attributes": 0, "size_bytes": 0, "crc": 0}
    assert replace(found.header, **unlike) == replace(batch.header, **unlike)
    limit = LIMITS.max_decompressed_bytes
    plain = plain_records(batch.data, batch.header, limit).tobytes()
    assert plain_records(found.data, found.header, limit).tobytes() == plain


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_is_compressed_so_already_is_left_alone(compression: Compression) -> None:
    batch = validate_produced(a_batch(*VALUES, compression=compression), LIMITS)

    assert recompressed(batch, compression, LIMITS) is batch


def test_a_batch_that_becomes_too_large_is_refused() -> None:
    limits = BatchLimits(max_message_bytes=5_000)
    batch = validate_produced(a_batch(*VALUES, compression=Compression.GZIP), limits)

    with pytest.raises(InvalidBatch, match="above the limit of 5000") as refused:
        recompressed(batch, Compression.NONE, limits)

    assert refused.value.fault is BatchFault.TOO_LARGE
