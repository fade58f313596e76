"""Loads the bytes of the runs that a fetch takes: at once from memory, all others concurrently.

Promises:
- A run that cannot be read is a value in its partition's result. No later run of that partition follows it.
- A fetch whose runs are all in memory does not wait.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from agent.read_path.read_decisions import ReadFailure
from cache_ring.pages.page_layout import PageKey
from cache_ring.pages.page_reader import PageReader
from cache_ring.pages.run_bytes import RunBytes
from cache_ring.pages.store_pages import DamagedPage
from sequencer.commits.coordinates import RunCoordinate
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectNotFound, StoreUnavailable
from storage.stores.side_by_side import side_by_side

log = logging.getLogger("tidelog")

_Tried: TypeAlias = RunBytes | ObjectNotFound | StoreUnavailable | DamagedPage


class Loaded(NamedTuple):
    """The outcome for a partition's runs: their bytes in order, up to the first run that could not be
    read.
    """

    runs: Sequence[RunBytes] = ()
    failure: ReadFailure | None = None
    missing: ObjectKey | None = None
    damaged: bool = False


NOTHING_LOADED = Loaded()


async def load_runs(pages: PageReader, selected: Mapping[int, Sequence[RunCoordinate]]) -> dict[int, Loaded]:
    """Returns the bytes of the runs for each place."""
    runs = [run for of_place in selected.values() for run in of_place]
    tried: list[_Tried | None] = [pages.in_memory(run) for run in runs]
    elsewhere: dict[tuple[PageKey, ...], list[int]] = {}
    for number, found in enumerate(tried):
        if found is None:
            elsewhere.setdefault(pages.pages_of(runs[number]), []).append(number)
    if elsewhere:
        reads = [
            _read_all(pages, where, [runs[number] for number in those]) for where, those in elsewhere.items()
        ]
        for those, read in zip(elsewhere.values(), await side_by_side(reads), strict=True):
            for number, found in zip(those, read, strict=True):
                tried[number] = found
    results = zip(runs, tried, strict=True)
    return {place: _complete(list(islice(results, len(of_place)))) for place, of_place in selected.items()}


async def _read_all(
    pages: PageReader, where: tuple[PageKey, ...], runs: Sequence[RunCoordinate]
) -> list[_Tried]:
    """Reads the runs of the same page or pages. The first run loads a whole page for all of them, so a run
    needs no task and no look at the ring.
    """
    if len(runs) == 1 or len(where) != 1 or not pages.brings_all_of(where[0], runs[0]):
        return await side_by_side(_try_read(pages, run) for run in runs)
    first = await _try_read(pages, runs[0])
    if isinstance(first, ObjectNotFound | StoreUnavailable):
        return [first] * len(runs)
    return [first, *[pages.in_memory(run) or await _try_read(pages, run) for run in runs[1:]]]


async def _try_read(pages: PageReader, run: RunCoordinate) -> _Tried:
    try:
        return await pages.read_run(run)
    except (ObjectNotFound, StoreUnavailable, DamagedPage) as error:
        return error


def _complete(tried: Sequence[tuple[RunCoordinate, _Tried | None]]) -> Loaded:
    """Reads all runs of one partition, up to the first that fails."""
    complete: list[RunBytes] = []
    for run, found in tried:
        if isinstance(found, RunBytes):
            complete.append(found)
        elif isinstance(found, ObjectNotFound):
            return Loaded(missing=run.object_key)
        else:
            log.warning(
                "fetch: a run cannot be read", extra={"object_key": run.object_key, "error": str(found)}
            )
            failure = None if complete else ReadFailure.UNAVAILABLE
            return Loaded(complete, failure=failure, damaged=isinstance(found, DamagedPage))
    return Loaded(complete)
