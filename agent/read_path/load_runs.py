"""The bytes of the runs that a fetch takes: at once what is in memory, all else side by side.

Promises that a run that cannot be had is a value in its partition's part, after which no later run of that partition
follows, and that a fetch whose runs are all in memory waits for nothing."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agent.read_path.plan_fetch import ReadFailure
from cache_ring.page_reader import PageReader
from cache_ring.run_bytes import RunBytes
from cache_ring.store_pages import DamagedPage
from sequencer.coordinates import RunCoordinate
from storage.identifiers import ObjectKey
from storage.object_store import ObjectNotFound, StoreUnavailable

_log = logging.getLogger(__name__)

_Tried: TypeAlias = RunBytes | ObjectNotFound | StoreUnavailable | DamagedPage


class Loaded(NamedTuple):
    """What became of a partition's runs: their bytes in order, up to the first that could not be had."""

    runs: Sequence[RunBytes] = ()
    failure: ReadFailure | None = None
    missing: ObjectKey | None = None
    damaged: bool = False


NOTHING_LOADED = Loaded()


async def load_runs(pages: PageReader, selected: Mapping[int, Sequence[RunCoordinate]]) -> dict[int, Loaded]:
    """For each place its runs' bytes."""
    loaded: dict[int, Loaded] = {}
    elsewhere: list[int] = []
    for place, runs in selected.items():
        kept = [pages.in_memory(run) for run in runs]
        complete = [run for run in kept if run is not None]
        if len(complete) == len(kept):
            loaded[place] = Loaded(complete)
        else:
            elsewhere.append(place)
    if elsewhere:
        async with asyncio.TaskGroup() as group:
            tasks = {place: group.create_task(_load_all(pages, selected[place])) for place in elsewhere}
        loaded.update((place, task.result()) for place, task in tasks.items())
    return loaded


async def _load_all(pages: PageReader, runs: Sequence[RunCoordinate]) -> Loaded:
    """All of one partition's runs at once; what comes after one that failed is left out."""
    found = await asyncio.gather(*(_try_read(pages, run) for run in runs))
    complete: list[RunBytes] = []
    for run, data in zip(runs, found, strict=True):
        if isinstance(data, ObjectNotFound):
            return Loaded(missing=run.object_key)
        if isinstance(data, Exception):
            _log.warning("fetch: a run cannot be read", extra={"object_key": run.object_key, "error": str(data)})
            failure = None if complete else ReadFailure.UNAVAILABLE
            return Loaded(complete, failure=failure, damaged=isinstance(data, DamagedPage))
        complete.append(data)
    return Loaded(complete)


async def _try_read(pages: PageReader, run: RunCoordinate) -> _Tried:
    try:
        return await pages.read_run(run)
    except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
        return error
