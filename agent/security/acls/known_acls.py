"""Keeps the authorizer's snapshot of all ACLs up to date.

Promises:
- A change in Postgres has effect here after `acl_poll_s` and one statement. Only what changed is read.
- A snapshot is replaced as a whole, once everything up to a version was read.
- While Postgres is away, the last snapshot goes on to decide. That is bounded: an agent that cannot renew its
  lease in Postgres stops serving.
- If the database is another one, or has forgotten what was removed, everything is read again. Until that is
  done, the old snapshot decides.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Protocol

from agent.security.acls.acl_index import AclIndex
from agent.security.acls.authorizer import Authorizer
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acls import BEFORE_ALL_ACLS, AclPage, AclPlace

log = logging.getLogger("tidelog")


class _Changes(Protocol):
    async def page(self, begin: AclPlace, cap: int) -> AclPage: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was read so far: everything up to `place`."""

    index: AclIndex
    place: AclPlace
    newest: int
    """The version when it was last complete, or when its reading began. It needs every later removal."""


class KnownAcls:
    def __init__(self, changes: _Changes, authorizer: Authorizer) -> None:
        self._changes = changes
        self._authorizer = authorizer
        self._settings = authorizer.settings
        self._read: _Read | None = None
        """None: everything has to be read."""
        self.loaded = asyncio.Event()
        """Set once there is a snapshot, or if none is needed."""
        self._reading = asyncio.Lock()
        self._forgets = 0

    async def run(self) -> None:
        """Follows the changes, until cancelled."""
        if not self._authorizer.is_on:
            self.loaded.set()
            return
        while True:
            with contextlib.suppress(SequencerUnavailable):
                await self.refresh()
            await asyncio.sleep(self._settings.acl_poll_s)

    def forget_all(self) -> None:
        """Another Postgres became the primary."""
        self._read = None
        self._forgets += 1

    async def refresh(self) -> None:
        """Returns once the snapshot has all changes that were made before this call. Raises
        SequencerUnavailable.
        """
        async with self._reading:
            forgets = self._forgets
            read = await self._follow(self._read)
            if forgets != self._forgets:
                return  # another database answers now
            if read.index is not self._authorizer.index:
                self._authorizer.index = read.index
                log.info("ACLs changed", extra={"acls": len(read.index), "version": read.newest})
            self._read = read
            self.loaded.set()

    async def _follow(self, read: _Read | None) -> _Read:
        """Reads page after page, to the last."""
        while True:
            page = await self._changes.page(
                BEFORE_ALL_ACLS if read is None else read.place, self._settings.acl_page
            )
            if read is not None and not _continues(read, page):
                read = None
                continue
            newest = page.newest if read is None else read.newest
            index = AclIndex() if read is None else read.index
            if page.added or page.removed:
                index = index.with_changes(page.added, page.removed)
            if page.is_last:
                return _Read(index=index, place=page.end, newest=page.newest)
            read = _Read(index=index, place=page.end, newest=newest)
            await asyncio.sleep(0)


def _continues(read: _Read, page: AclPage) -> bool:
    """False: another database answers, or it has forgotten removals that this reader has not seen."""
    is_same = page.newest >= max(read.newest, read.place.version)
    return is_same and page.forgotten <= read.newest
