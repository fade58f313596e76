"""The store's temporary keys that the Iceberg catalog gives to readers of a table (decision 0140).

Promises:
- The keys read the table's files and nothing else. The agent's own keys never leave it.
- Readers of a table share its keys. They count for at least a third of the life that the setting says, so
  that a long scan does not lose them. While STS is away, older ones are given for as long as they count.
- One request per table asks STS at a time, and `_AT_ONCE` of all tables. After a failure STS is left alone
  for `PAUSE_S`; meanwhile those who need new keys get NoScopedKeys at once.
- The keys of at most `most_tables` tables are kept.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from sequencer.history.history_values import HistoryTable
from storage.scoped_keys import NoScopedKeys, ScopedKeys, TokenService
from storage.stores.object_store import StoreUrl

log = logging.getLogger("tidelog")

PAUSE_S: Final = 2.0
_AT_ONCE: Final = 4
_LAST_USE: Final = timedelta(seconds=60)
"""Keys that end sooner are not given."""


class VendedKeys:
    def __init__(
        self,
        service: TokenService,
        store: StoreUrl,
        *,
        duration_s: int,
        timeout_s: float,
        most_tables: int,
        utc_now: Callable[[], datetime],
    ) -> None:
        """`timeout_s`: of a call to STS. A request waits at most twice that, with its wait for others."""
        self._service = service
        self._store = store
        self._renewed_before_end = timedelta(seconds=duration_s / 3)
        self._longest_wait_s = 2 * timeout_s
        self._most_tables = most_tables
        self._utc_now = utc_now
        self._kept: OrderedDict[str, ScopedKeys] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._failed: tuple[datetime, str] | None = None

    def prefix_of(self, table: HistoryTable) -> str:
        """Returns the prefix of the table's files in the bucket, with a slash at its end."""
        assert table.metadata_key is not None, "a table without files has no readers"
        folder = f"/{table.topic_id}/"
        before, found, _ = table.metadata_key.partition(folder)
        assert found, "the key of a table's file holds the topic's id"
        return "/".join(part for part in (self._store.prefix, before) if part) + folder

    def location_of(self, table: HistoryTable) -> str:
        return f"s3://{self._store.bucket}/{self.prefix_of(table)}"

    async def of(self, table: HistoryTable) -> ScopedKeys:
        """Raises NoScopedKeys."""
        prefix = self.prefix_of(table)
        kept = self._kept_for(prefix, self._renewed_before_end)
        if kept is not None:
            return kept
        try:
            return await self._renewed(prefix, f"tidelog-{table.topic_id}")
        except NoScopedKeys:
            older = self._kept_for(prefix, _LAST_USE)
            if older is None:
                raise
            return older

    def _kept_for(self, prefix: str, at_least: timedelta) -> ScopedKeys | None:
        keys = self._kept.get(prefix)
        if keys is None or keys.expires_at - self._utc_now() < at_least:
            return None
        self._kept.move_to_end(prefix)
        return keys

    async def _renewed(self, prefix: str, session_name: str) -> ScopedKeys:
        await self._service.load()
        lock = self._asking.setdefault(prefix, asyncio.Lock())
        try:
            async with asyncio.timeout(self._longest_wait_s), lock:
                kept = self._kept_for(prefix, self._renewed_before_end)
                if kept is not None:
                    return kept
                async with self._at_once:
                    return await self._asked(prefix, session_name)
        except TimeoutError:
            raise NoScopedKeys(f"no answer within {self._longest_wait_s:g} s") from None

    async def _asked(self, prefix: str, session_name: str) -> ScopedKeys:
        if self._failed is not None and self._utc_now() < self._failed[0]:
            raise NoScopedKeys(self._failed[1])
        try:
            keys = await self._service.keys_for(prefix, session_name)
        except NoScopedKeys as reason:
            self._failed = self._utc_now() + timedelta(seconds=PAUSE_S), str(reason)
            log.warning("STS gave no keys for readers of the catalog", extra={"reason": str(reason)})
            raise
        self._failed = None
        self._kept[prefix] = keys
        self._kept.move_to_end(prefix)
        while len(self._kept) > self._most_tables:
            self._kept.popitem(last=False)
        return keys
