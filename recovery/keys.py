"""Brings the keys of encrypted topics back from their copies in the bucket (docs/encryption.md#keys).

Promises:
- Afterwards the database has each key of a live topic that the bucket has, however old the database was. So
  batches open that were sealed after the last backup or entry of the journal.
- A row that differs from its copy takes the copy's encryption, which is at least as new. A key is known by
  its id, so a key is never taken for another.
- The copies of keys of deleted topics are deleted. Those of topics that the log does not know stay.
- A key whose copy is missing or damaged gets a copy again if the database has it.
"""

from collections import defaultdict
from collections.abc import Sequence

from recovery.report import Report
from recovery.settings import RecoverySettings
from sequencer.journal.recovery import RecoverySession
from sequencer.topics.topic_keys import SQL, key_of
from storage.encryption.key_objects import CorruptKeyObject, KeyObjects, WrappedKey
from storage.identifiers import KeyId, TopicId
from storage.stores.object_store import ObjectNotFound, ObjectStore
from storage.stores.side_by_side import side_by_side


async def recover_keys(
    session: RecoverySession, store: ObjectStore, cluster: str, settings: RecoverySettings, report: Report
) -> None:
    """Raises StoreUnavailable."""
    objects = KeyObjects(store, cluster)
    await session.execute(SQL["remove_of_no_live_topic"])
    copies: dict[TopicId, list[KeyId]] = defaultdict(list)
    async for topic_id, key_id in objects.list():
        copies[topic_id].append(key_id)
    topics = {
        TopicId(row.topic_id): row.is_live
        for row in await session.execute(SQL["topics_of"], topic_ids=list(copies))
    }
    intact = set[tuple[TopicId, KeyId]]()
    for topic_id, key_ids in copies.items():
        if topic_id not in topics:
            continue
        if not topics[topic_id]:
            for key_id in key_ids:
                await session.execute(SQL["destroy_copy"], topic_id=topic_id, key_id=key_id)
            continue
        found = list[WrappedKey]()
        for start in range(0, len(key_ids), settings.recovery_requests):
            some = key_ids[start : start + settings.recovery_requests]
            read = await side_by_side(_read(objects, topic_id, key_id, report) for key_id in some)
            found += [key for key in read if key is not None]
        await _take(session, topic_id, found, report)
        intact |= {(topic_id, key.key_id) for key in found}
    for row in await session.execute(SQL["every"]):
        key = key_of(row)
        if (key.topic_id, key.key_id) not in intact:
            await objects.put(key)


async def _read(objects: KeyObjects, topic_id: TopicId, key_id: KeyId, report: Report) -> WrappedKey | None:
    try:
        return await objects.get(topic_id, key_id)
    except (CorruptKeyObject, ObjectNotFound) as error:
        report.key_faults.append(f"{objects.object_key(topic_id, key_id)}: {error}")
        return None


async def _take(
    session: RecoverySession, topic_id: TopicId, found: Sequence[WrappedKey], report: Report
) -> None:
    known = {
        key.key_id: key for key in map(key_of, await session.execute(SQL["of_topics"], topic_ids=[topic_id]))
    }
    versions = {key.version for key in known.values()}
    for key in sorted(found, key=lambda key: (key.version, key.key_id)):
        before = known.get(key.key_id)
        if before is not None:
            version = before.version
        else:
            version = key.version if key.version not in versions else max(versions) + 1
            versions.add(version)
            report.keys_found += 1
        await session.execute(
            SQL["take_copy"],
            topic_id=topic_id,
            version=version,
            key_id=key.key_id,
            wrapped_by=key.wrapped_by,
            wrapped=key.wrapped,
        )
