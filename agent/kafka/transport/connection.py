"""One Kafka connection: handles requests and answers them in order, as `Order` says
(docs/design/write-path.md#order-on-a-connection).

Promises:
- A request starts once those before it are answered. Exceptions: Produce and OffsetCommit are pipelined,
  reads run at the same time, and a long poll delays no request. A response that is ready behind a long poll
  ends its wait.
- Responses leave in request order.
- Bytes of requests in memory stay within the agent's and the connection's budgets. Past them the socket is
  not read.
- Bad input closes only this connection, with one log line.
- If a client does not read its responses, its requests are not read.
- When a client hangs up, its requests are cancelled, except those of APIs that are `carried_out`.
- Where clients must authenticate (`ConnectionState.sasl`), nothing else is answered before they have. Until
  then, one request is taken at a time, within the bounds of `unauthenticated.py`.

An idle connection has no task and no buffer: the event loop's callbacks drive it. A large request is received
straight into its own buffer, a small one into a buffer that all connections share.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from agent.kafka.api import Api, CloseConnection, Order
from agent.kafka.apis.produce.produce_bytes import first_topic
from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.dispatch import PRODUCE_KEY, BadRequest, Dispatch, Request
from agent.kafka.forwarding.forward_protocol import Hello
from agent.kafka.forwarding.forwarding import ConnectionForwards, Forwarding
from agent.kafka.forwarding.split_requests import groups_of, is_coordinated
from agent.kafka.quota_pauses import charge_received, muted_s, quota_throttle_ms
from agent.kafka.routing.routing import zone_of_client
from agent.kafka.transport.frames import SMALLEST_FRAME_BYTES, BadFrame, FrameReader, NeedData
from agent.kafka.transport.memory import MemoryBudget, Reservation
from agent.kafka.transport.request_order import Turn, Turns
from agent.kafka.transport.unauthenticated import Unauthenticated
from agent.kafka.transport.vectored import Chunk
from agent.metrics import Metrics
from agent.parts import Parts
from agent.quotas.entities import QuotaKind
from agent.quotas.timed import Timed
from agent.read_path.watch import Watch
from agent.security.sasl.session import SaslSession
from agent.settings import AgentSettings
from agent.tenants.known_tenants import KnownTenants
from agent.tenants.tenant_parts import TenantParts
from agent.tenants.usage import UsageMeter
from agent.traffic_class import TrafficClass, class_of
from sequencer.database.fair_queue import ASKED_BY, Asker

log = logging.getLogger("tidelog")

_SHARED_BUFFER_BYTES: Final = 65_536
_LEAST_MUTE_S: Final = 0.001
_LEAST_REQUEST_BYTES: Final = 5_120
"""What a small request takes until it is answered: the objects that carry it are fifty times the bytes of one
small record.
"""
_TAKES_TURNS: Final = (Order.PIPELINED, Order.PARKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all connections of a listener share."""

    settings: AgentSettings
    parts: Parts
    dispatch: Dispatch
    memory: MemoryBudget
    bulk_memory: MemoryBudget
    unauthenticated: Unauthenticated
    metrics: Metrics
    tenants: KnownTenants
    usage: UsageMeter
    forwarding: Forwarding | None = None
    """Set in one-address mode."""
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_SHARED_BUFFER_BYTES)))
    """Received bytes go here and are taken out at once: one callback of the event loop fills it, the next
    reads it.
    """


@dataclass(slots=True, kw_only=True, eq=False)
class _InFlight:
    request: Request
    reservation: Reservation
    response: asyncio.Future[list[Chunk] | None]
    holds_up: bool = False
    """True if it has started and the requests behind it wait for it."""
    turn: Turn | None = None
    watch: Watch | None = None
    tenant: str | None = None
    """Who pays for it: the tenant of a client that came to this agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A request that waits for those before it."""

    entry: _InFlight
    received_at_s: float
    frame: bytes | memoryview


class KafkaConnection(asyncio.BufferedProtocol):
    """Driven by the event loop's callbacks. The listener hears when it opens, and when all of it has
    ended.
    """

    def __init__(
        self,
        shared: Shared,
        connection_id: int,
        on_open: Callable[["KafkaConnection"], None],
        on_end: Callable[["KafkaConnection"], None],
        forwarded: Hello | None = None,
    ) -> None:
        """`forwarded`: another agent opened it, for one of its clients."""
        self._shared = shared
        self._on_open = on_open
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.state = ConnectionState(
            connection_id=connection_id, peer="?", authorizer=shared.parts.authorizer
        )
        self._forwards: ConnectionForwards | None = None
        if forwarded is not None:
            self.state.peer, self.state.zone = forwarded.client, forwarded.zone
            self.state.forwarded_by = forwarded.node_id
            self.state.principal = forwarded.principal
        elif shared.forwarding is not None:
            self._forwards = shared.forwarding.of_connection(self.state)
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(shared.settings.max_request_bytes)
        self._turns = Turns()
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._holding_up = 0
        """The number of requests that others wait for."""
        self._also_starts: Api | Order | None = None
        """What may start while requests hold others up: more of this API or of this order. None: nothing."""
        self._waiting: list[_Waiting] = []
        """The last requests in flight, which have not started."""
        self._is_sending = False
        """True if the first response in flight is written and waits for its client to read."""
        self._reserved: Reservation | None = None
        self._starved: int | None = None
        self._admission: asyncio.Task[None] | None = None
        self._is_writable = True
        self._closing = False
        self._ended_s: float | None = None
        """The time since when all is answered and the connection only waits for its client to take the last
        bytes.
        """
        self._mute: asyncio.TimerHandle | None = None
        """Set while the client is over a quota: no further request is taken."""
        self._lost = self._has_ended = False
        self._login: SaslSession | None = None
        """Set until the client has authenticated. Only for a listener that asks for it."""
        self._made_s = self._loop.time()
        self._last_received_s = self._last_active_s = self._last_writable_s = self._made_s

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._shared.settings.write_buffer_bytes)
        if self.state.forwarded_by is None:
            self.state.peer = address_of(self._transport)
        self.state.sasl = self._login = self._shared.parts.authentication.session_of(self.state)
        self._on_open(self)
        if self._login is not None and not self._closing:
            self._shared.unauthenticated.enter(self, self.state.network)
            self._bound_frames(self._login)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        room = self._frames.room
        return self._shared.buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        self._last_received_s = self._loop.time()
        if self._frames.room is not None:
            self._frames.filled(nbytes)
        elif not self._closing:
            self._frames.feed(bytes(self._shared.buffer[:nbytes]))
        if not self._closing:
            self._start_requests()

    def eof_received(self) -> bool:
        self.state.is_gone = True  # the client may have closed only its side, which is not visible here
        # A half-closed client still gets its responses; the last one closes. An agent that forwards closes
        # only when its client is gone.
        self._stop_reading()
        return self.state.forwarded_by is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.is_gone = True
        del exc  # a reset ends the connection as well
        self._lost = self._closing = True
        self._shared.unauthenticated.leave(self, self.state.network)
        if self._admission is not None:
            self._admission.cancel()
        if self._mute is not None:
            self._mute.cancel()
        for entry in self._in_flight:
            if not entry.request.api.carried_out:
                entry.response.cancel()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._last_writable_s = self._loop.time()
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._is_sending:
            self._is_sending = False
            self._finish_first()
        self._send_responses()

    # --- for the listener

    def close(self, reason: str, **fields: str) -> None:
        """Closes at once, without the responses in flight."""
        if self._transport is not None and not self._lost:
            self._shared.metrics.connections_closed.labels(reason).inc()
            log.warning("connection closed", extra={"reason": reason, "peer": self.state.peer, **fields})
            self._closing = True
            self._transport.abort()

    def drain(self) -> None:
        """Takes no further request. Closes once everything in flight is answered."""
        self._stop_reading()

    async def abandon(self) -> None:
        """Hangs up and cancels what is in flight. Returns once that has ended."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        tasks: list[asyncio.Future[Any]] = [entry.response for entry in self._in_flight]
        tasks += [] if self._admission is None else [self._admission]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def overdue(self, now_s: float) -> str | None:
        """Returns why the connection should be closed at the loop time `now_s`, if it should."""
        settings = self._shared.settings
        if not self._is_writable and now_s - self._last_writable_s > settings.send_timeout_s:
            return "send_timeout"
        if self._ended_s is not None and now_s - self._ended_s > settings.send_timeout_s:
            return "send_timeout"
        if self._login is not None and now_s - self._made_s > self._login_timeout_s():
            return "authentication_timeout"
        if self._starved is not None or self._closing or self._mute is not None:
            return None
        if self._frames.in_frame and now_s - self._last_received_s > self._patience_s():
            return "receive_timeout"
        if self._in_flight:
            return None
        if now_s - max(self._last_received_s, self._last_active_s) > settings.idle_timeout_s:
            return "idle"
        return None

    def _login_timeout_s(self) -> float:
        return self._shared.parts.authentication.settings.sasl_timeout_s

    def _patience_s(self) -> float:
        """Returns how long a partial frame may make no progress: not long while other requests wait for its
        memory.
        """
        settings = self._shared.settings
        if self._reserved is not None and self._reserved.is_wanted:
            return min(settings.receive_timeout_s, settings.receive_timeout_when_full_s)
        return settings.receive_timeout_s

    # --- taking requests

    def _start_requests(self) -> None:
        try:
            # A request that already has memory is taken, so that a muted connection holds none.
            while not self._closing and self._starved is None:
                if self._mute is not None and self._reserved is None:
                    self._pause_reading()
                    return
                if not self._start_one():
                    return
        except (BadFrame, BadRequest) as error:
            self._shared.metrics.connections_closed.labels("bad_request").inc()
            log.warning(
                "connection closed for a bad request", extra={"peer": self.state.peer, "error": str(error)}
            )
            self._stop_reading()  # requests before the bad one still get their responses

    def _start_one(self) -> bool:
        if self._login is not None and self._in_flight:
            return False  # what this request says depends on the answer to the last one
        size_bytes = self._frames.next_frame_bytes()
        if size_bytes is None:
            return False
        if self._reserved is None:
            if self._frames.held_bytes < min(size_bytes, self._shared.settings.unreserved_frame_bytes):
                return False  # a frame that is announced and not sent takes no memory from others
            takes_bytes = max(size_bytes, min(_LEAST_REQUEST_BYTES, self._shared.memory.limit_bytes))
            if self._has_room(takes_bytes):
                self._reserved = self._memory_of(takes_bytes).try_reserve(takes_bytes)
            if self._reserved is None:
                self._starve(takes_bytes)
                return False
        self._frames.allot()
        frame = self._frames.next_frame()
        if isinstance(frame, NeedData):
            return False
        reservation, self._reserved = self._reserved, None
        try:
            request = self._decode(frame)
            groups = groups_of(request.api.key, request.payload)
        except BaseException:
            reservation.release()  # no other owner exists yet
            raise
        self.state.note_request(request.client_id, groups)
        self._take(request, reservation, frame)
        return True

    def _decode(self, frame: bytes | memoryview) -> Request:
        if self._login is not None:
            if self._login.takes_raw_frames:
                return self._shared.dispatch.decode_raw(frame)
            # Before the frame is decoded, which costs more than reading its first bytes.
            refusal = self._login.refusal(int.from_bytes(frame[:2], "big", signed=True), self._loop.time())
            if refusal is not None:
                raise BadRequest(refusal)
        return self._shared.dispatch.decode(frame)

    def _memory_of(self, size_bytes: int) -> MemoryBudget:
        shared = self._shared
        if self._login is not None:
            return shared.unauthenticated.memory_of(size_bytes)
        is_bulk = self.state.is_bulk or (shared.bulk_memory.was_used and self._begins_as_bulk())
        return shared.bulk_memory if is_bulk else shared.memory

    def _begins_as_bulk(self) -> bool:
        """True if the next frame is a Produce that is bulk by its first topic, as far as its first bytes say.
        Otherwise many new connections of bulk could fill the memory of others.
        """
        named = first_topic(self._frames.first_bytes)
        if named is None or self.state.tenant_name is not None:
            return False
        parts = self._shared.parts
        of_user = parts.quotas.priority(self.state.principal.name, self.state.client_id or "")
        return class_of(of_user, (parts.topics.known(named),)) is TrafficClass.BULK

    def _has_room(self, size_bytes: int) -> bool:
        settings = self._shared.settings
        if not self._in_flight:
            return True
        fits = self._in_flight_bytes + size_bytes <= settings.connection_memory_bytes
        return fits and len(self._in_flight) < settings.max_requests_in_flight

    def _take(self, request: Request, reservation: Reservation, frame: bytes | memoryview) -> None:
        shared = self._shared
        traffic = shared.metrics.traffic
        traffic.requests[request.api.name] += 1
        traffic.request_bytes += request.size_bytes
        entry = _InFlight(request=request, reservation=reservation, response=self._loop.create_future())
        self._in_flight.append(entry)
        self._in_flight_bytes += reservation.size_bytes
        now_s = self._loop.time()
        if self._login is not None and self._transport is not None:
            self._transport.pause_reading()  # until `_took_step`
        if request.api.key == PRODUCE_KEY:
            charge_received(request.size_bytes, self.state, request.client_id, shared.parts)
            self._mute_if_due()
        if self._waiting or not self._may_start(request.api):
            self._waiting.append(_Waiting(entry=entry, received_at_s=now_s, frame=frame))
        else:
            self._start(entry, now_s, frame)

    def _may_start(self, api: Api) -> bool:
        return not self._holding_up or self._also_starts is api or self._also_starts is api.order

    def _start_waiting(self) -> None:
        while self._waiting and self._may_start(self._waiting[0].entry.request.api):
            waiting = self._waiting.pop(0)
            if not waiting.entry.response.done():  # otherwise its client hung up
                self._start(waiting.entry, waiting.received_at_s, waiting.frame)

    def _start(self, entry: _InFlight, received_at_s: float, frame: bytes | memoryview) -> None:
        shared, request, api = self._shared, entry.request, entry.request.api
        if api.order is Order.LONG_POLL:
            entry.watch = Watch()
            if self._closing:
                entry.watch.end_wait()
        else:
            entry.holds_up = True
            self._holding_up += 1
            self._also_starts = (
                api if api.order is Order.PIPELINED else api.order if api.order is Order.READ else None
            )
            if api.order in _TAKES_TURNS:
                entry.turn = self._turns.next()
        tenant, parts = None, shared.parts
        tenant_name = self.state.tenant_name
        if tenant_name is not None and (tenant := shared.tenants.get(tenant_name)) is not None:
            parts = shared.tenants.parts_of(tenant, lambda tenant: TenantParts(shared.parts, tenant))
            if self.state.forwarded_by is None:
                entry.tenant = tenant_name
                shared.usage.note(tenant_name, request.size_bytes, 0, 1)
        context = RequestContext(
            api_key=api.key,
            api_version=request.version,
            client_id=request.client_id,
            client_zone=zone_of_client(request.client_id) or self.state.zone or shared.settings.zone,
            connection=self.state,
            settings=shared.settings,
            parts=parts,
            tenant=tenant,
            received_at_s=received_at_s,
            memory=entry.reservation,
            turn=entry.turn,
            watch=entry.watch,
        )
        refusal = None if self.state.sasl is None else self.state.sasl.refusal(api.key, self._loop.time())
        if tenant_name is not None:
            refusal = refusal or shared.tenants.refusal(tenant_name, api.key)
        if refusal is not None:
            entry.response.set_exception(CloseConnection(refusal))
        elif shared.parts.quotas.limits(QuotaKind.REQUEST) or not shared.dispatch.begin(
            request, context, entry.response
        ):
            entry.response = self._loop.create_task(
                self._handle(request, context, self._to_forward(request, frame))
            )
        entry.response.add_done_callback(partial(self._answered, entry))
        if api.order is Order.PARKED and entry.turn is not None:
            entry.turn.passed().add_done_callback(lambda _: self._let_pass(entry))

    def _let_pass(self, entry: _InFlight) -> None:
        """Lets the requests behind it start."""
        if entry.holds_up:
            entry.holds_up = False
            self._holding_up -= 1
            self._start_waiting()

    def _to_forward(self, request: Request, frame: bytes | memoryview) -> bytes | None:
        """Returns the request's bytes if another agent may have to answer it."""
        return bytes(frame) if self._forwards is not None and is_coordinated(request.api.key) else None

    async def _handle(
        self, request: Request, context: RequestContext[Parts], frame: bytes | None
    ) -> list[Chunk] | None:
        ASKED_BY.set(Asker(self.state.network, self.state.connection_id))
        if self._shared.parts.quotas.limits(QuotaKind.REQUEST):
            timed = Timed(self._forward_or_answer(request, context, frame))
            try:
                return await timed
            finally:
                quota_throttle_ms(QuotaKind.REQUEST, timed.busy_s, context)
        return await self._forward_or_answer(request, context, frame)

    async def _forward_or_answer(
        self, request: Request, context: RequestContext[Parts], frame: bytes | None
    ) -> list[Chunk] | None:
        if self._forwards is not None and frame is not None:
            return await self._forwards.answer(request, frame, context)
        return await self._shared.dispatch.answer(request, context)

    def _starve(self, size_bytes: int) -> None:
        """Stops reading until `_admit` has found room for the partial frame."""
        self._starved = size_bytes
        self._shared.metrics.request_memory_waits.inc()
        if self._transport is not None:
            self._transport.pause_reading()
        self._admit()

    def _admit(self) -> None:
        """Reserves memory for a starved frame as soon as this connection may have more."""
        if (
            self._starved is not None
            and self._admission is None
            and not self._closing
            and self._has_room(self._starved)
        ):
            self._admission = self._loop.create_task(self._reserve(self._starved))
            self._admission.add_done_callback(self._admitted)

    async def _reserve(self, size_bytes: int) -> None:
        self._reserved = await self._memory_of(size_bytes).reserve(size_bytes)

    def _admitted(self, _: asyncio.Task[None]) -> None:
        self._admission = None
        if self._closing:
            self._send_responses()
            return
        self._starved = None
        self._last_received_s = self._loop.time()
        self._start_requests()
        is_at_login = self._login is not None and bool(self._in_flight)
        if (
            self._starved is None
            and not self._closing
            and not is_at_login
            and (self._mute is None or self._reserved is not None)
            and self._transport is not None
        ):
            self._transport.resume_reading()

    # --- answering

    def _answered(self, entry: _InFlight, _: asyncio.Future[list[Chunk] | None]) -> None:
        if entry.turn is not None:
            entry.turn.done()
        self._send_responses()
        self._let_pass(entry)

    def _send_responses(self) -> None:
        """Sends the responses that are ready, in order, as far as the client takes them. Ends if nothing more
        can come.
        """
        while self._in_flight and not self._is_sending and self._in_flight[0].response.done():
            self._send_first()
            if self._is_writable:
                self._finish_first()
            else:
                self._is_sending = True
        if len(self._in_flight) > 1:
            self._end_wait_of_first()
        if self._closing and not self._in_flight and self._admission is None:
            self._end()

    def _end_wait_of_first(self) -> None:
        """Ends the wait of a long poll if a response behind it is ready."""
        watch = self._in_flight[0].watch
        if watch is not None and any(entry.response.done() for entry in self._in_flight):
            watch.end_wait()

    def _send_first(self) -> None:
        entry = self._in_flight[0]
        if entry.response.cancelled():
            return
        error = entry.response.exception()
        if error is not None and entry.tenant is not None:
            self._shared.usage.traffic.note_failure(entry.tenant)
        if isinstance(error, CloseConnection):
            self.close("refused", api=entry.request.api.name, error=str(error))
        elif error is not None:
            self._shared.metrics.request_failures.labels(entry.request.api.name).inc()
            fields = {"api": entry.request.api.name, "peer": self.state.peer}
            log.error("request failed unexpectedly", extra=fields, exc_info=error)
            self.close("request_broke")
        elif (buffers := entry.response.result()) is not None and self._transport is not None:
            if self._lost or self._transport.is_closing():
                return
            self._shared.metrics.traffic.response_bytes += sum(map(len, buffers))
            if entry.tenant is not None:
                self._shared.usage.note(entry.tenant, 0, sum(map(len, buffers)), 0)
            self._transport.writelines(buffers)

    def _finish_first(self) -> None:
        entry = self._in_flight.popleft()
        self._in_flight_bytes -= entry.reservation.size_bytes
        entry.reservation.release()
        self._last_active_s = self._loop.time()
        self._mute_if_due()
        self._admit()
        if self.state.sasl is not None:
            self._took_step(self.state.sasl)

    # --- quotas

    def _mute_if_due(self) -> None:
        now_s = self._loop.time()
        if self.state.muted_until_s > now_s and not self._closing:
            self._mute_for(muted_s(self.state, self._shared.parts.quotas, now_s), now_s)

    def _mute_for(self, left_s: float, now_s: float) -> None:
        """Takes no request until the client has paid what it owes (KIP-219). Looks once per round of reports,
        since this agent's share may have grown.
        """
        self.state.muted_until_s = now_s + left_s
        if self._mute is not None:
            self._mute.cancel()
        look_s = min(left_s, self._shared.parts.quotas.settings.quota_poll_s)
        self._mute = self._loop.call_later(look_s, self._end_mute)
        if self._reserved is None:
            self._pause_reading()

    def _end_mute(self) -> None:
        self._mute = None
        now_s = self._loop.time()
        left_s = muted_s(self.state, self._shared.parts.quotas, now_s)
        if left_s > _LEAST_MUTE_S and not self._closing:
            self._mute_for(left_s, now_s)
            return
        self.state.muted_until_s = 0.0
        self._last_received_s = self._loop.time()
        if self._closing or self._starved is not None:
            return
        self._start_requests()
        if not self._closing and self._starved is None and self._mute is None and self._transport is not None:
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.pause_reading()

    # --- authenticating

    def _took_step(self, session: SaslSession) -> None:
        """A request was answered on a connection whose client must authenticate."""
        if session.is_failed:
            self._stop_reading()
        elif self._login is not None and not self._closing:
            if session.is_authenticated:
                self._login = None
                self._shared.unauthenticated.leave(self, self.state.network)
            self._bound_frames(session)
            if self._transport is not None:
                self._transport.resume_reading()
            self._loop.call_soon(self._start_requests)

    def _bound_frames(self, session: SaslSession) -> None:
        shared = self._shared
        if session.is_authenticated:
            self._frames.limit(shared.settings.max_request_bytes)
        else:
            least = 1 if session.takes_raw_frames else SMALLEST_FRAME_BYTES
            self._frames.limit(shared.parts.authentication.settings.sasl_max_receive_bytes, least)

    # --- ending

    def _stop_reading(self) -> None:
        if not self._closing:
            self._closing = True
            if self._admission is not None:
                self._admission.cancel()
            if self._transport is not None and not self._lost:
                self._transport.pause_reading()
            for entry in self._in_flight:
                if entry.watch is not None:
                    entry.watch.end_wait()
            self._send_responses()

    def _end(self) -> None:
        """Everything is answered, or will not be: hangs up and gives back what the connection still holds."""
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None
        if not self._lost and self._transport is not None:
            if self._ended_s is None:
                self._ended_s = self._loop.time()
            self._transport.close()
        elif not self._has_ended:
            self._has_ended = True
            if self._forwards is not None:
                self._forwards.close()  # not earlier: a request that is carried out may still be forwarded
            self._on_end(self)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Returns `host:port` of who connected."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
