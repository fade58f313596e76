"""One Kafka connection: pipelined requests, started in order, run concurrently, answered in order (DESIGN §5).

Promises: bytes of requests in memory stay within the agent's and the connection's budgets (past them the socket is not
read); bad input closes this connection, with one log line, and touches no other; answers leave in request order; a
client that does not read its answers stops being read. When a client hangs up, what it asked for is cancelled, but for
requests of APIs that are `carried_out`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from agent.kafka.api import CloseConnection
from agent.kafka.client_zone import zone_of_client
from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.coordinated import groups_of, is_coordinated
from agent.kafka.dispatch import BadRequest, Dispatch, Request
from agent.kafka.forward_protocol import Hello
from agent.kafka.forwarding import ConnectionForwards, Forwarding
from agent.kafka.frames import BadFrame, FrameReader, NeedData
from agent.kafka.memory import MemoryBudget, Reservation
from agent.kafka.turns import Turns
from agent.kafka.vectored import Chunk
from agent.metrics import Metrics
from agent.parts import Parts
from agent.settings import AgentSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all connections of a listener share."""

    settings: AgentSettings
    parts: Parts
    dispatch: Dispatch
    memory: MemoryBudget
    metrics: Metrics
    forwarding: Forwarding | None = None
    """In one-address mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    request: Request
    reservation: Reservation
    answer: asyncio.Task[list[Chunk] | None]


class KafkaConnection(asyncio.Protocol):
    """Driven by the event loop's callbacks and by `run`, which the listener owns and awaits."""

    def __init__(
        self,
        shared: Shared,
        connection_id: int,
        on_open: Callable[["KafkaConnection"], None],
        forwarded: Hello | None = None,
    ) -> None:
        """`forwarded`: another agent opened it, for one of its clients."""
        self._shared = shared
        self._on_open = on_open
        self._loop = asyncio.get_running_loop()
        self.state = ConnectionState(connection_id=connection_id, peer="?")
        self._forwards: ConnectionForwards | None = None
        if forwarded is not None:
            self.state.peer, self.state.zone = forwarded.client, forwarded.zone
            self.state.forwarded_by = forwarded.node_id
        elif shared.forwarding is not None:
            self._forwards = shared.forwarding.of_connection(self.state)
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(shared.settings.max_request_bytes)
        self._turns = Turns()
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._reserved: Reservation | None = None
        self._starved: int | None = None
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self._lost = False
        self._last_received_s = self._last_active_s = self._last_writable_s = self._loop.time()

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._shared.settings.write_buffer_bytes)
        peer = self._transport.get_extra_info("peername")
        if self.state.forwarded_by is None:
            self.state.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._last_received_s = self._loop.time()
        if not self._closing:
            self._frames.feed(data)
            self._start_requests()

    def eof_received(self) -> bool:
        # A half-closed client still gets its answers; `run` closes when there are none left. An agent that forwards
        # closes only when its client is gone.
        self._stop_reading()
        return self.state.forwarded_by is None

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a reset is as good a goodbye as any
        self._lost = self._closing = True
        if self._forwards is not None:
            self._forwards.close()
        self._writable.set()
        self._changed.set()
        for entry in self._in_flight:
            if not entry.request.api.carried_out:
                entry.answer.cancel()

    def pause_writing(self) -> None:
        self._last_writable_s = self._loop.time()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- for the listener

    async def run(self) -> None:
        """Answer in order until the connection ends. Never raises but for cancellation."""
        try:
            async with asyncio.TaskGroup() as tasks:
                admission = tasks.create_task(self._admit())
                await self._answer()
                admission.cancel()
        finally:
            self._abandon()

    def close(self, reason: str, *, detail: str = "") -> None:
        """Close at once, without the answers in flight."""
        if self._transport is not None and not self._lost:
            self._shared.metrics.connections_closed.labels(reason).inc()
            log.warning("connection closed reason=%s peer=%s %s", reason, self.state.peer, detail)
            self._closing = True
            self._transport.abort()

    def drain(self) -> None:
        """Take no further request; close once everything in flight is answered."""
        self._stop_reading()

    def overdue(self, now_s: float) -> str | None:
        """Why the connection should be closed at the loop time `now_s`, if it should."""
        settings = self._shared.settings
        if not self._writable.is_set() and now_s - self._last_writable_s > settings.send_timeout_s:
            return "send_timeout"
        if self._starved is not None or self._closing:
            return None
        if self._frames.in_frame and now_s - self._last_received_s > self._patience_s():
            return "receive_timeout"
        if self._in_flight:
            return None
        if now_s - max(self._last_received_s, self._last_active_s) > settings.idle_timeout_s:
            return "idle"
        return None

    def _patience_s(self) -> float:
        """How long a frame begun may make no progress: not long while others wait for the memory it holds."""
        settings = self._shared.settings
        if self._reserved is not None and self._shared.memory.waiters:
            return min(settings.receive_timeout_s, settings.receive_timeout_when_full_s)
        return settings.receive_timeout_s

    # --- taking requests

    def _start_requests(self) -> None:
        try:
            while not self._closing and self._starved is None and self._start_one():
                pass
        except (BadFrame, BadRequest) as error:
            self._shared.metrics.connections_closed.labels("bad_request").inc()
            log.warning("connection closed reason=bad_request peer=%s error=%s", self.state.peer, error)
            self._stop_reading()  # requests before the bad one still get their answers

    def _start_one(self) -> bool:
        size_bytes = self._frames.next_frame_bytes()
        if size_bytes is None:
            return False
        if self._reserved is None:
            if self._frames.held_bytes < min(size_bytes, self._shared.settings.unreserved_frame_bytes):
                return False  # a frame announced and not sent takes no memory from others
            if not self._has_room(size_bytes):
                self._starve(size_bytes)
                return False
            self._reserved = self._shared.memory.try_reserve(size_bytes)
            if self._reserved is None:
                self._starve(size_bytes)
                return False
        frame = self._frames.next_frame()
        if isinstance(frame, NeedData):
            return False
        reservation, self._reserved = self._reserved, None
        try:
            request = self._shared.dispatch.decode(frame)
            groups = groups_of(request.api.key, request.payload)
        except BaseException:
            reservation.release()  # nobody else knows of it yet
            raise
        self.state.note_request(request.client_id, groups)
        self._start(request, reservation, frame)
        return True

    def _has_room(self, size_bytes: int) -> bool:
        settings = self._shared.settings
        if not self._in_flight:
            return True
        fits = self._in_flight_bytes + size_bytes <= settings.connection_memory_bytes
        return fits and len(self._in_flight) < settings.max_requests_in_flight

    def _start(self, request: Request, reservation: Reservation, frame: bytes | memoryview) -> None:
        shared = self._shared
        shared.metrics.requests.labels(request.api.name).inc()
        shared.metrics.request_bytes.inc(request.size_bytes)
        context = RequestContext(
            api_key=request.api.key,
            api_version=request.version,
            client_id=request.client_id,
            client_zone=zone_of_client(request.client_id) or self.state.zone or shared.settings.zone,
            connection=self.state,
            settings=shared.settings,
            parts=shared.parts,
            received_at_s=self._loop.time(),
            memory=reservation,
            turn=self._turns.next() if request.api.ordered else None,
        )
        task = self._loop.create_task(self._handle(request, context, self._to_forward(request, frame)))
        self._in_flight.append(_InFlight(request=request, reservation=reservation, answer=task))
        self._in_flight_bytes += reservation.size_bytes
        self._changed.set()

    def _to_forward(self, request: Request, frame: bytes | memoryview) -> bytes | None:
        """The request's bytes, if another agent may have to answer it."""
        return bytes(frame) if self._forwards is not None and is_coordinated(request.api.key) else None

    async def _handle(self, request: Request, context: RequestContext, frame: bytes | None) -> list[Chunk] | None:
        try:
            if self._forwards is not None and frame is not None:
                return await self._forwards.answer(request, frame, context)
            return await self._shared.dispatch.answer(request, context)
        finally:
            if context.turn is not None:
                context.turn.done()

    def _starve(self, size_bytes: int) -> None:
        """Stop reading until `_admit` has found room for the frame begun."""
        self._starved = size_bytes
        self._shared.metrics.request_memory_waits.inc()
        if self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    async def _admit(self) -> None:
        """Wait for room whenever a frame has none."""
        while not self._closing:
            if self._starved is None or not self._has_room(self._starved):
                self._changed.clear()
                await self._changed.wait()
                continue
            reservation = await self._shared.memory.reserve(self._starved)
            self._reserved, self._starved = reservation, None
            self._last_received_s = self._loop.time()
            self._start_requests()
            if self._starved is None and not self._closing and self._transport is not None:
                self._transport.resume_reading()

    # --- answering

    async def _answer(self) -> None:
        while True:
            while not self._in_flight:
                if self._closing:
                    if self._transport is not None:
                        self._transport.close()
                    return
                self._changed.clear()
                await self._changed.wait()
            await self._answer_one(self._in_flight[0])
            entry = self._in_flight.popleft()
            self._in_flight_bytes -= entry.reservation.size_bytes
            entry.reservation.release()
            self._last_active_s = self._loop.time()
            self._changed.set()

    async def _answer_one(self, entry: _InFlight) -> None:
        try:
            buffers = await entry.answer
        except asyncio.CancelledError:
            # Cancelling the connection cancels the request it waits for as well: only the connection's task tells.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return
        except CloseConnection as error:
            self.close("refused", detail=f"api={entry.request.api.name} error={error}")
            return
        except Exception:
            self._shared.metrics.request_failures.labels(entry.request.api.name).inc()
            log.exception("request broke api=%s peer=%s", entry.request.api.name, self.state.peer)
            self.close("request_broke")
            return
        if buffers is not None and self._transport is not None and not self._lost:
            self._shared.metrics.response_bytes.inc(sum(len(buffer) for buffer in buffers))
            self._transport.writelines(buffers)
            await self._writable.wait()

    # --- ending

    def _stop_reading(self) -> None:
        if not self._closing:
            self._closing = True
            if self._transport is not None and not self._lost:
                self._transport.pause_reading()
            self._changed.set()

    def _abandon(self) -> None:
        """Give back what the connection still holds."""
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None
        for entry in self._in_flight:
            entry.answer.cancel()
            entry.reservation.release()
        self._in_flight.clear()
        if self._transport is not None:
            self._transport.close()
