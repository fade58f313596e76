"""The workloads by their letters."""

from collections.abc import Mapping

WORKLOADS: Mapping[str, str] = {
    "a": "1 KB records, 10 partitions, 256 KiB batches",
    "b": "100-byte records, 100 partitions, 16 KiB batches",
    "c": "1,000 partitions at 2,000 records/s from 20 producers",
    "d": "one lone producer, one record at a time",
    "e": "consumers at the tail, in the writer's zone and in another",
    "f": "catch-up from the beginning while a tail runs",
    "g": "5,000 idle connections with 500 busy ones",
    "h": "commits of the sequencer alone",
    "a-long": "(a) for ten minutes at 20 MB/s, merging at its steady state",
    "b-long": "(b) for ten minutes at 20 MB/s, merging at its steady state",
    "start": "from an agent's start to its first acknowledgement",
}
