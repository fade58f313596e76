"""Seals the checked batches of topics with tidelog.encryption=on, before they wait for their segment.

If a topic's key cannot be had, its partitions get a retriable refusal, and no others. Large batches are
sealed in a thread.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from kio.schema.errors import ErrorCode

from agent.error_codes import ProduceResult
from agent.kafka.apis.produce.produce_batches import NO_ROOM, Accepted, without
from agent.kafka.context import RequestContext
from agent.kafka.uses import UsesChecking, UsesTopicKeys
from storage.batches.record_batch import read_header
from storage.encryption.key_wrapping import KeyUnavailable
from storage.encryption.sealed_batches import SEAL_BYTES, TopicKey
from storage.identifiers import TopicId
from storage.segments.segment_batches import CRC, LENGTH, PARTITION, TOPIC, PendingBatches
from storage.stores.side_by_side import few_at_a_time


class UsesSeals(UsesChecking, UsesTopicKeys, Protocol):
    """The parts that sealing uses."""


async def sealed(
    accepted: Accepted, topic_ids: Collection[TopicId], context: RequestContext[UsesSeals]
) -> Accepted | ProduceResult:
    """Returns the batches, sealed where they belong to one of `topic_ids`."""
    batches = accepted.batches
    keys: dict[int, TopicKey] = {}
    refused: dict[int, ProduceResult] = {}
    numbers = [number for number, topic_id in enumerate(batches.topic_ids) if topic_id in topic_ids]
    found = await few_at_a_time(partial(_key_of, context), [batches.topic_ids[number] for number in numbers])
    for number, key in zip(numbers, found, strict=True):
        if isinstance(key, TopicKey):
            keys[number] = key
        else:
            refused[number] = key
    if refused:
        accepted = without(accepted, refused)
        batches = accepted.batches
    if not context.memory.try_grow(len(batches) * SEAL_BYTES):
        return NO_ROOM
    if sum(map(len, batches.data)) < context.settings.validation_thread_bytes:
        return replace(accepted, batches=_seal(batches, keys))
    in_thread = await context.parts.checking.run_for(
        context.connection.connection_id, lambda: _seal(batches, keys)
    )
    return replace(accepted, batches=in_thread)


async def _key_of(context: RequestContext[UsesSeals], topic_id: TopicId) -> TopicKey | ProduceResult:
    try:
        return await context.parts.topic_keys.to_seal(topic_id)
    except KeyUnavailable as error:
        return ProduceResult(code=ErrorCode.not_enough_replicas, message=str(error))


def _seal(batches: PendingBatches, keys: Mapping[int, TopicKey]) -> PendingBatches:
    columns, data = batches.columns.copy(), list(batches.data)
    places = zip(columns[TOPIC].tolist(), columns[PARTITION].tolist(), strict=True)
    for index, (topic, partition) in enumerate(places):
        key = keys.get(topic)
        if key is not None:
            batch = memoryview(key.seal(data[index], partition))
            data[index] = batch
            columns[LENGTH, index] = len(batch)
            columns[CRC, index] = read_header(batch).crc
    return replace(batches, columns=columns, data=data)
