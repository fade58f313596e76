"""Takes the events of the audit trail, and writes them to the log and to the topic's buffer (docs/audit.md).

Promises:
- Taking an event never waits and never raises: no request is slower or fails because it is audited.
- Each kind of event has a bound per second, and what waits for the topic has one in bytes. Beyond that events
  are lost, and counted: in `tidelog_audit_events_lost_total`, and in an event `events lost` within a second
  or as soon as there is room.
- Refusals also have a bound per host, so one host does not use up the bound of others.
- Nothing is asked of a request that is allowed, unless the log has debug lines.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from agent.metrics import Metrics
from agent.security.audit.events import Asker, AuditEvent, Event, Resource, events_of_change
from agent.security.audit.settings import AuditSettings
from agent.security.line_limit import FairLineLimit, LineLimit

log = logging.getLogger("tidelog")
trail = logging.getLogger("tidelog.audit")
"""Its lines are JSON whatever the form of other lines is, and no other rule drops any."""

_REPORT_S: Final = 1.0
_REFUSALS: Final = frozenset({Event.LOGIN_FAILED, Event.DENIED, Event.CHANGE_REFUSED})
_WHOLE_BUFFER: Final = frozenset({Event.CHANGE})
"""Other events take half of it: whoever may cause them keeps no change out of the topic."""
_ENTRY_BYTES: Final = 200
"""What an event in the buffer takes besides its bytes."""


class Entry(NamedTuple):
    """An event that waits for the topic."""

    at_ms: int
    event_id: str
    line: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.line) + _ENTRY_BYTES


class TopicBuffer:
    """Events that wait for the topic, oldest first, bounded in bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: deque[Entry] = deque()
        self._size_bytes = 0
        self.filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry, event: Event) -> bool:
        """Returns False if there is no room."""
        most_bytes = self._most_bytes if event in _WHOLE_BUFFER else self._most_bytes // 2
        if self._size_bytes + entry.size_bytes > most_bytes:
            return False
        self._entries.append(entry)
        self._size_bytes += entry.size_bytes
        self.filled.set()
        return True

    def first(self, most_bytes: int) -> Sequence[Entry]:
        """Returns the oldest, at least one. They stay until `written`."""
        found: list[Entry] = []
        size_bytes = 0
        for entry in self._entries:
            size_bytes += len(entry.line)
            if found and size_bytes > most_bytes:
                break
            found.append(entry)
        return found

    def written(self, count: int) -> None:
        """Drops the oldest."""
        for _ in range(count):
            self._size_bytes -= self._entries.popleft().size_bytes
        if not self._entries:
            self.filled.clear()


class Audit:
    def __init__(
        self,
        settings: AuditSettings,
        metrics: Metrics,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic; `wall_clock` has seconds since 1970."""
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._has_log = settings.audit_log
        self.buffer = TopicBuffer(settings.audit_buffer_bytes) if settings.audit_topic else None
        self._limits = {
            event: LineLimit(settings.audit_events_per_s, clock) for event in Event if event not in _REFUSALS
        }
        self._refusals = {
            event: FairLineLimit(settings.audit_refusals_per_s, settings.audit_refusals_of_host_per_s, clock)
            for event in _REFUSALS
        }
        self.is_on = settings.audit_log or settings.audit_topic
        self.names_allowed = settings.audit_log and trail.isEnabledFor(logging.DEBUG)
        """True: what is allowed is an event too, for the log alone."""
        self.node_id: Callable[[], int | None] = lambda: None
        self._source = secrets.token_hex(8)
        self._number = 0
        self._lost_to_log: Counter[str] = Counter()
        self._lost_to_topic: Counter[str] = Counter()

    # --- events

    def logged_in(self, asker: Asker, mechanism: str, *, is_again: bool = False) -> None:
        if self._takes(Event.LOGIN, asker):
            reason = "the session is renewed" if is_again else ""
            self._write(
                AuditEvent(
                    event=Event.LOGIN, asker=asker, outcome="success", mechanism=mechanism, reason=reason
                )
            )

    def login_failed(self, asker: Asker, mechanism: str, reason: str) -> None:
        """The asker's principal is who the client said it is."""
        if self._takes(Event.LOGIN_FAILED, asker):
            self._write(
                AuditEvent(
                    event=Event.LOGIN_FAILED,
                    asker=asker,
                    outcome="failure",
                    mechanism=mechanism,
                    reason=reason,
                )
            )

    def decided(
        self, asker: Asker, request: str, operation: str, resource: Resource, *, is_allowed: bool = False
    ) -> None:
        event = Event.ALLOWED if is_allowed else Event.DENIED
        if self._takes(event, asker):
            outcome = "success" if is_allowed else "failure"
            self._write(
                AuditEvent(
                    event=event,
                    asker=asker,
                    request=request,
                    outcome=outcome,
                    operation=operation,
                    resources=(resource,),
                )
            )

    def changed(
        self,
        asker: Asker,
        request: str,
        resources: Sequence[Resource],
        reason: str = "",
        *,
        of_offsets: bool = False,
    ) -> None:
        """Nothing is written for a request that names no resource."""
        if not self.is_on:
            return
        for event in events_of_change(asker, request, resources, reason, of_offsets=of_offsets):
            if self._takes(event.event, asker):
                self._write(event)

    # --- what was lost

    async def run(self) -> None:
        """Says what was lost, until cancelled."""
        while True:
            await asyncio.sleep(_REPORT_S)
            self.report_lost()

    def report_lost(self) -> None:
        if self._has_log and self._lost_to_log:
            trail.info(self._entry(self._lost(self._lost_to_log)).line.decode())
            self._lost_to_log.clear()
        if self.buffer is None or not self._lost_to_topic:
            return
        if self.buffer.put(self._entry(self._lost(self._lost_to_topic)), Event.LOST):
            self._lost_to_topic.clear()

    @staticmethod
    def _lost(lost: Counter[str]) -> AuditEvent:
        return AuditEvent(event=Event.LOST, outcome="success", lost=dict(lost))

    def _takes(self, event: Event, asker: Asker) -> bool:
        if not self.is_on:
            return False
        refusals = self._refusals.get(event)
        taken = self._limits[event].take() if refusals is None else refusals.take(asker.budget)
        if taken is not None:
            return True
        self._metrics.audit_events_lost.labels(event.value, "rate").inc()
        if self._has_log:
            self._lost_to_log[event.value] += 1
        if self.buffer is not None and event is not Event.ALLOWED:
            self._lost_to_topic[event.value] += 1
        return False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around what makes an event: a mistake there is logged and counted, and its request goes on."""
        try:
            yield
        except Exception:
            log.exception("an audit event cannot be made")
            self._metrics.audit_events_lost.labels("", "error").inc()

    def _write(self, event: AuditEvent) -> None:
        name = event.event.value
        entry = self._entry(event)
        self._metrics.audit_events.labels(name).inc()
        if self._has_log:
            trail.log(logging.DEBUG if event.event is Event.ALLOWED else logging.INFO, entry.line.decode())
        if self.buffer is None or event.event is Event.ALLOWED:
            return
        if not self.buffer.put(entry, event.event):
            self._metrics.audit_events_lost.labels(name, "buffer").inc()
            self._lost_to_topic[name] += 1

    def _entry(self, event: AuditEvent) -> Entry:
        at_s = self._wall_clock()
        self._number += 1
        event_id = f"{self._source}-{self._number}"
        line = event.as_line(at_s, event_id, self.node_id()).encode()
        return Entry(int(at_s * 1000), event_id, line)
