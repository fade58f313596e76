"""Uploads a segment: with a timeout, retries with jitter, and a hedged second attempt past the p99
(docs/design/write-path.md#upload).

Promises:
- `upload` returns only after the store took the whole object. It raises UploadFailed within `upload_attempts
  * (upload_timeout_s + backoff)`.
- The same key may be written twice, with the same bytes, so hedges and late PUTs are harmless.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from agent.metrics import Metrics
from agent.settings import AgentSettings
from agent.write_path.backoff import Backoff
from agent.write_path.outcomes import LastOutcomes
from storage.identifiers import ObjectKey
from storage.stores.object_store import ObjectStore, StoreBusy, StoreUnavailable

log = logging.getLogger("tidelog")

_REMEMBERED_UPLOADS = 200
_FEWEST_FOR_P99 = 20


class UploadFailed(Exception):
    """Every attempt failed. The object may still exist; no row will name it."""


class Uploader:
    def __init__(
        self,
        store: ObjectStore,
        settings: AgentSettings,
        metrics: Metrics,
        clock: Callable[[], float],
        on_put: Callable[[], None],
        outcomes: LastOutcomes,
    ) -> None:
        """`outcomes` may be shared with others that upload to the same store."""
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._on_put = on_put
        self._recent_s: deque[float] = deque(maxlen=_REMEMBERED_UPLOADS)
        self.outcomes = outcomes

    async def upload(self, key: ObjectKey, data: bytes) -> None:
        started_s = self._clock()
        self.outcomes.began(started_s)
        try:
            await self._attempts(key, data)
        finally:
            self.outcomes.ended()
        now_s = self._clock()
        self.outcomes.succeeded(now_s)
        self._metrics.put_bytes.inc(len(data))
        self._metrics.put_seconds.observe(now_s - started_s)

    async def try_out(self, key: ObjectKey, data: bytes) -> None:
        """PUTs one object that nothing refers to, to see whether uploads work again."""
        self.outcomes.began(self._clock())
        try:
            async with asyncio.timeout(self._settings.upload_timeout_s):
                await self._put(key, data, "trial")
        except (StoreUnavailable, TimeoutError) as error:
            self._failed(error)
        else:
            self.outcomes.succeeded(self._clock())
        finally:
            self.outcomes.ended()

    async def _attempts(self, key: ObjectKey, data: bytes) -> None:
        backoff = Backoff(self._settings.upload_backoff_s)
        for attempt in range(1, self._settings.upload_attempts + 1):
            try:
                await self._hedged_put(key, data, "first" if attempt == 1 else "retry")
            except (StoreUnavailable, TimeoutError) as error:
                reason = self._failed(error)
                log.warning("upload failed", extra={"key": key, "attempt": attempt, "error": reason})
                if attempt == self._settings.upload_attempts:
                    raise UploadFailed(f"{key} could not be uploaded: {reason}") from error
                await backoff.wait()
            else:
                return

    def _failed(self, error: StoreUnavailable | TimeoutError) -> str:
        """Returns the reason for people."""
        self._metrics.put_failures.inc()
        reason = str(error) or f"no answer within {self._settings.upload_timeout_s:g} s"
        if isinstance(error, StoreBusy):
            self.outcomes.answered_busy(self._clock())
        else:
            self.outcomes.failed(reason, self._clock())
        return reason

    async def _hedged_put(self, key: ObjectKey, data: bytes, kind: str) -> None:
        """Makes one attempt, and a second one if the first takes unusually long. The first success counts."""
        attempts = [asyncio.ensure_future(self._put(key, data, kind))]
        try:
            async with asyncio.timeout(self._settings.upload_timeout_s):
                await asyncio.wait(attempts, timeout=self._hedge_after_s())
                if not attempts[0].done():
                    attempts.append(asyncio.ensure_future(self._put(key, data, "hedge")))
                while not any(_succeeded(attempt) for attempt in attempts):
                    waiting = [attempt for attempt in attempts if not attempt.done()]
                    if not waiting:
                        await attempts[-1]  # raises the failure
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)
            # Their exception's traceback has this frame: each would keep the other alive.
            del attempts, attempt

    async def _put(self, key: ObjectKey, data: bytes, kind: str) -> None:
        self._on_put()
        self._metrics.puts.labels(kind).inc()
        started_s = self._clock()
        await self._store.put(key, [data])
        self._recent_s.append(self._clock() - started_s)

    def _hedge_after_s(self) -> float:
        least_s = self._settings.hedge_after_min_s
        if len(self._recent_s) < _FEWEST_FOR_P99:
            return max(least_s, self._settings.upload_timeout_s / 4)
        return max(least_s, sorted(self._recent_s)[int(len(self._recent_s) * 0.99)])


def _succeeded(attempt: asyncio.Future[None]) -> bool:
    return attempt.done() and not attempt.cancelled() and attempt.exception() is None
