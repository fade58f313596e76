"""The identity provider's public keys, fetched from a URL or a file and kept for a bounded time.

Promises:
- A token with an unknown key id, and keys older than `oauth_keys_refresh_s`, ask for a fetch. There is one at
  a time, and at most one per `oauth_keys_pause_s`.
- While keys cannot be fetched again, the last ones are used for `oauth_keys_trusted_s` at most.
- A fetch takes `oauth_keys_timeout_s` and `oauth_keys_bytes` at most, and follows no redirect.
- The log has the host and path of the URL, not its query, which may have a secret.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from agent.security.sasl.oauthbearer import BadKeySet, KeySet, UnknownKey, VerifyingKey, read_key_set
from agent.security.sasl.settings import SaslSettings
from agent.security.sasl.steps import CannotCheck
from storage.threads import Threads

log = logging.getLogger("tidelog")


class TokenKeys:
    def __init__(self, settings: SaslSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_s = self._tried_s = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._threads = Threads("keys", 1)
        self.fetches = 0

    def close(self) -> None:
        self._threads.close()
        if self._fetching is not None:
            self._fetching.cancel()

    async def key(self, key_id: str | None) -> VerifyingKey:
        """Raises UnknownKey, CannotCheck."""
        if self._clock() - self._fetched_s > self._settings.oauth_keys_refresh_s:
            await self._refresh()
        try:
            return self._current().of(key_id)
        except UnknownKey:
            if not await self._refresh():
                raise
        return self._current().of(key_id)

    def _current(self) -> KeySet:
        if self._keys is None or self._clock() - self._fetched_s > self._settings.oauth_keys_trusted_s:
            raise CannotCheck("the identity provider's keys could not be fetched")
        return self._keys

    async def _refresh(self) -> bool:
        """Fetches the keys, unless that was tried a moment ago. True if a fetch has ended."""
        if self._fetching is None:
            if self._clock() - self._tried_s < self._settings.oauth_keys_pause_s:
                return False
            self._tried_s = self._clock()
            self._fetching = asyncio.create_task(self._fetch(), name="fetch token keys")
        # One client's end does not end the fetch that others wait for.
        await asyncio.shield(self._fetching)
        return True

    async def _fetch(self) -> None:
        asked_s = self._clock()
        self.fetches += 1
        try:
            async with asyncio.timeout(self._settings.oauth_keys_timeout_s):
                self._keys = read_key_set(await self._document())
            self._fetched_s = asked_s
        except (BadKeySet, httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
            parts = urlsplit(self._settings.oauth_jwks)
            # The text of an HTTPStatusError has the whole URL.
            if isinstance(error, httpx.HTTPStatusError):
                reason = f"status {error.response.status_code}"
            else:
                reason = str(error)
            log.warning(
                "token keys not fetched",
                extra={
                    "host": parts.hostname or "",
                    "path": parts.path,
                    "error": f"{type(error).__name__}: {reason}",
                },
            )
        finally:
            self._fetching = None

    async def _document(self) -> bytes:
        parts, most = urlsplit(self._settings.oauth_jwks), self._settings.oauth_keys_bytes
        if parts.scheme == "file":
            return await self._threads.run(_read, Path(unquote(parts.path)), most)
        found = bytearray()
        async with (
            httpx.AsyncClient(timeout=self._settings.oauth_keys_timeout_s) as client,
            client.stream("GET", self._settings.oauth_jwks) as response,
        ):
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                found += chunk
                if len(found) > most:
                    raise BadKeySet(f"the key set has more than {most} bytes")
        return bytes(found)


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise BadKeySet(f"the key set has more than {most} bytes")
    return found
