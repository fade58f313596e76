"""Copies the bucket's listing into a table of the database, where SQL compares it with the log. So a million
objects take no memory here.
"""

from collections.abc import AsyncIterator, Callable

from recovery.settings import RecoverySettings
from sequencer.journal.recovery import ListedObject, RecoverySession
from storage.segments.keys import is_merged, merged_prefix, segment_id_of, segments_prefix
from storage.stores.object_store import ObjectStore


async def take_census(
    session: RecoverySession,
    store: ObjectStore,
    cluster: str,
    settings: RecoverySettings,
    on_objects: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Lists all segments. Returns how many uploaded and how many merged ones there are. Calls `on_objects`
    with the count so far. Raises StoreUnavailable."""
    await session.begin_listing()
    page: list[ListedObject] = []
    seen = 0
    async for one in _segments(store, cluster):
        page.append(one)
        if len(page) == settings.recovery_page:
            await session.add_listed(page)
            seen += len(page)
            on_objects(seen)
            page = []
    await session.add_listed(page)
    on_objects(seen + len(page))
    return await session.end_listing()


async def _segments(store: ObjectStore, cluster: str) -> AsyncIterator[ListedObject]:
    for prefix in (segments_prefix(cluster), merged_prefix(cluster)):
        async for info in store.list(prefix):
            segment_id = segment_id_of(info.key)
            if segment_id is not None:
                yield ListedObject(
                    segment_id=segment_id,
                    object_key=info.key,
                    size_bytes=info.size_bytes,
                    modified_at=info.modified_at,
                    is_merged=is_merged(info.key),
                )
