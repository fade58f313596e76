"""Merging copies sealed batches as they are: it has no key, and needs none."""

import os
from dataclasses import replace

from sequencer.client import Sequencer
from storage.batches.record_batch import read_header
from storage.encryption.sealed_batches import TopicKey
from storage.identifiers import KeyId
from storage.segments.segment import verify_segment
from storage.stores.object_store import ObjectStore
from tests.compactor.builders import listed, pending, written
from tests.compactor.merging import merge_everything

SEGMENTS = 40


async def test_a_merged_object_has_sealed_batches_that_still_open(
    sequencer: Sequencer, store: ObjectStore
) -> None:
    topic = await sequencer.topics.create("sealed", 1, {"retention.ms": "-1"})
    key = TopicKey(topic.topic_id, KeyId(1), os.urandom(32))
    plain = [pending(topic, 2, timestamp_ms=10_000 + number) for number in range(SEGMENTS)]
    for one in plain:
        data = key.seal(one.batch.data, 0)
        batch = replace(one.batch, header=read_header(data), data=memoryview(data))
        await written(sequencer, store, replace(one, batch=batch))

    assert await merge_everything(sequencer, store)

    merged = [info.key for info in await listed(store) if "/merged/" in info.key]
    opened = set()
    for object_key in merged:
        data = bytes(await store.get(object_key))
        for run in verify_segment(data).runs:
            position: int = run.position
            while position < run.position + run.length:
                size = read_header(data, position).size_bytes
                opened.add(key.open(data[position : position + size], 0)[16:])
                position += size
    assert opened
    assert opened <= {bytes(one.batch.data)[16:] for one in plain}
