"""Credentials of users, as this agent knows them: looked up in the sequencer, kept for a bounded time.

Promises:
- A change or deletion is seen `sasl_credentials_poll_s` later, while `run` runs and the sequencer is
  reachable. `on_deleted` then hears of the deleted credentials.
- Deletions that may have gone unseen, as after a fail-over, are found by a look at all credentials `in_use`.
- Nothing is trusted longer than `sasl_credentials_cache_s` after the last look that succeeded.
- Names that no user has are cached separately, so inventing names pushes no user out.
- One statement answers concurrent lookups (`agent/shared_lookups.py`).
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Set
from typing import Final

from agent.security.sasl.settings import SaslSettings
from agent.shared_lookups import SharedLookups
from sequencer.database.database import SequencerUnavailable
from sequencer.security.credentials import (
    PER_PAGE,
    ChangeMark,
    Credential,
    CredentialKey,
    UserCredentials,
    can_be_user,
)

_MOST_KEYS: Final = 1_000
_MOST_WAITING: Final = 4_096
_MOST_OVERTAKEN: Final = 8
"""How often a lookup is repeated because changes overtook it."""


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
        self._resets = 0
        self._trusted_until_s = -math.inf
        self._forgettings = 0
        """Counts what was forgotten. A lookup that was sent before may be older than that."""
        self._decoy_key: bytes | None = None
        self._lookups: SharedLookups[str, tuple[Credential, ...]] = SharedLookups(
            self._ask, most_keys=_MOST_KEYS, most_waiting=_MOST_WAITING
        )
        self.on_deleted: Callable[[frozenset[CredentialKey]], None] = lambda _: None
        self.in_use: Callable[[], Set[CredentialKey]] = frozenset
        """The credentials that open sessions have proved themselves with."""

    async def run(self) -> None:
        """Notices changes, until cancelled."""
        while True:
            # While the sequencer is away, trust ends as always.
            with contextlib.suppress(SequencerUnavailable):
                await self.notice_changes()
            await asyncio.sleep(self._settings.sasl_credentials_poll_s)

    async def notice_changes(self) -> None:
        """Raises SequencerUnavailable."""
        asked_s = self._clock()
        is_done = await self._follow() or await self._begin()
        if is_done:
            self._trusted_until_s = asked_s + self._settings.sasl_credentials_cache_s

    async def _follow(self) -> bool:
        """Notices what changed since the mark. False: some deletions may be forgotten in the sequencer."""
        while (mark := self._mark) is not None:
            news = await self._credentials.changes_after(mark)
            if self._mark is None:
                break  # another Postgres answered meanwhile
            if not news.is_complete:
                self._mark = None
                break
            for key in news.changed:
                self._forget(key.user)
            if news.deleted:
                self.on_deleted(frozenset(news.deleted))
            if not news.changed:
                return True
            self._mark = news.mark
        return False

    async def _begin(self) -> bool:
        """Takes the newest mark, and finds the sessions whose credentials were deleted before it. False:
        another Postgres became the primary meanwhile.
        """
        resets = self._resets
        newest = await self._credentials.newest()
        self._clear()
        # A login that looked its user up before this repeats that (`has`), or its session is among these.
        in_use = list(self.in_use())
        for start in range(0, len(in_use), PER_PAGE):
            page = in_use[start : start + PER_PAGE]
            found = await self._credentials.of({key.user for key in page})
            gone = frozenset(page) - {one.key for credentials in found.values() for one in credentials}
            if resets != self._resets:
                return False
            if gone:
                self.on_deleted(gone)
        if resets != self._resets:
            return False
        self._mark = newest
        return True

    def forget_all(self) -> None:
        """Another Postgres became the primary."""
        self._resets += 1
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

    async def has(self, credential: Credential) -> bool:
        """True if the user still has this version of the credential. Then no later change was noticed yet.
        Raises SequencerUnavailable.
        """
        for _ in range(_MOST_OVERTAKEN):
            forgettings = self._forgettings
            found = await self.of(credential.key.user)
            if forgettings == self._forgettings:
                return any(one.key == credential.key and one.change == credential.change for one in found)
        raise SequencerUnavailable("credentials change faster than they are looked up")

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
