"""Credentials of users, as this agent knows them: looked up in the sequencer, kept for a bounded time.

Promises:
- A change or deletion is seen `sasl_credentials_poll_s` later, while `run` runs and the sequencer is
  reachable. `on_deleted` then hears of the deleted credentials.
- Nothing is trusted longer than `sasl_credentials_cache_s` after the last look that succeeded.
- Names that no user has are cached separately, so inventing names pushes no user out.
- One statement answers concurrent lookups (`agent/shared_lookups.py`).
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from agent.security.sasl.settings import SaslSettings
from agent.shared_lookups import SharedLookups
from sequencer.database.database import SequencerUnavailable
from sequencer.security.credentials import (
    ChangeMark,
    Credential,
    CredentialKey,
    UserCredentials,
    can_be_user,
)

_MOST_KEYS: Final = 1_000
_MOST_WAITING: Final = 4_096


class KnownCredentials:
    def __init__(
        self, credentials: UserCredentials, settings: SaslSettings, clock: Callable[[], float]
    ) -> None:
        self._credentials = credentials
        self._settings = settings
        self._clock = clock
        self._users: OrderedDict[str, tuple[Credential, ...]] = OrderedDict()
        self._strangers: OrderedDict[str, None] = OrderedDict()
        self._mark: ChangeMark | None = None
        self._trusted_until_s = -math.inf
        self._forgettings = 0
        """Counts what was forgotten. A lookup that was sent before may be older than that."""
        self._decoy_key: bytes | None = None
        self._lookups: SharedLookups[str, tuple[Credential, ...]] = SharedLookups(
            self._ask, most_keys=_MOST_KEYS, most_waiting=_MOST_WAITING
        )
        self.on_deleted: Callable[[frozenset[CredentialKey]], None] = lambda _: None

    async def run(self) -> None:
        """Notices changes, until cancelled."""
        while True:
            # While the sequencer is away, trust ends as always.
            with contextlib.suppress(SequencerUnavailable):
                await self.notice_changes()
            await asyncio.sleep(self._settings.sasl_credentials_poll_s)

    async def notice_changes(self) -> None:
        """Raises SequencerUnavailable."""
        asked_s, mark = self._clock(), self._mark
        if mark is None:
            newest = await self._credentials.newest()
            self._clear()
            self._mark = newest
        else:
            while True:
                news = await self._credentials.changes_after(mark)
                if self._mark is None:
                    return  # another Postgres answered meanwhile
                if not news.is_complete:
                    self._clear()
                for key in news.changed:
                    self._forget(key.user)
                if news.deleted:
                    self.on_deleted(frozenset(news.deleted))
                if not news.changed:
                    break
                mark = self._mark = news.mark
        self._trusted_until_s = asked_s + self._settings.sasl_credentials_cache_s

    def forget_all(self) -> None:
        """Another Postgres became the primary."""
        self._mark = None
        self._decoy_key = None
        self._trusted_until_s = -math.inf
        self._clear()

    async def of(self, user: str) -> tuple[Credential, ...]:
        """Returns the user's credentials; none if there is no such user. Raises SequencerUnavailable."""
        if not can_be_user(user):
            return ()  # and keeps no name of any length
        if self._clock() <= self._trusted_until_s:
            if user in self._users:
                self._users.move_to_end(user)
                return self._users[user]
            if user in self._strangers:
                return ()
        forgettings = self._forgettings
        found = (await self._lookups.get([user])).get(user, ())
        if forgettings == self._forgettings:
            self._keep(user, found)
        return found

    async def decoy_key(self) -> bytes:
        """Raises SequencerUnavailable."""
        if self._decoy_key is None:
            self._decoy_key = await self._credentials.decoy_key()
        return self._decoy_key

    async def _ask(self, users: Collection[str]) -> dict[str, tuple[Credential, ...]]:
        return await self._credentials.of(users)

    def _keep(self, user: str, found: tuple[Credential, ...]) -> None:
        if found:
            self._users[user] = found
            if len(self._users) > self._settings.sasl_credentials_cached:
                self._users.popitem(last=False)
        else:
            self._strangers[user] = None
            if len(self._strangers) > self._settings.sasl_credentials_cached:
                self._strangers.popitem(last=False)

    def _forget(self, user: str) -> None:
        self._forgettings += 1
        self._users.pop(user, None)
        self._strangers.pop(user, None)

    def _clear(self) -> None:
        self._forgettings += 1
        self._users.clear()
        self._strangers.clear()
