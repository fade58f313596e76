"""Forwards requests to the coordinators of their groups, in one-address mode
(docs/design/zones.md#forwarding).

All agents stand behind one address, so a client's request reaches any of them. A request that names a group
is sent to the agent that the ring names as the group's coordinator. The client's bytes are sent unchanged and
marked as forwarded. The coordinator serves them as if the client had come to it, or answers NOT_COORDINATOR.
It never forwards them again.

Promises:
- There is one connection per client connection and coordinator. A client that waits for a rebalance delays no
  other client, and a client's requests arrive in order.
- If a coordinator is gone, silent or refuses, this agent's own handler answers in its place. That is
  NOT_COORDINATOR, unless the ring names this agent by then.
- No request waits for an agent that has left the ring.
- A client that hangs up cancels its forwarded requests.
- When a connection to another agent ends, all its requests end. A response that is too large, or to another
  request, ends the connection. A response without a waiting request is dropped.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, TypeAlias, cast

from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import Reader
from kio.serial.writers import Writer
from kio.static.primitive import i16, i32

from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.dispatch import Dispatch, Request
from agent.kafka.forwarding.forward_protocol import ACCEPTED, PREFACE, Hello, encode_hello
from agent.kafka.forwarding.split_requests import groups_of, join, split, waits_for_members
from agent.kafka.transport.frames import LENGTH_BYTES, BadFrame, FrameReader, NeedData
from agent.kafka.transport.vectored import Chunk
from agent.kafka.uses import UsesOverload
from agent.metrics import Metrics
from agent.settings import AgentSettings
from cache_ring.peers.peer_connection import Secrets, connect_to_peer
from cache_ring.peers.peer_proof import NotAPeer
from cache_ring.peers.peer_tls import PeerTls
from cache_ring.ring.membership import Membership
from sequencer.cluster.agents import AgentAddress, LiveAgent
from sequencer.tenants.tenant_names import prefix_of
from storage.identifiers import NodeId

_CORRELATION_ID_BYTES: Final = 4
_write_header_v1: Final = entity_writer(HeaderV1)
_write_header_v2: Final = entity_writer(HeaderV2)


class BadResponse(Exception):
    """The bytes are not a response to the request."""


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, payload: Any
) -> bytes:
    """Returns a frame without its length."""
    write, is_flexible = _request_writer(api_key, version)
    where = {"request_api_key": i16(api_key), "request_api_version": i16(version)}
    buffer = BytesIO()
    if is_flexible:
        _write_header_v2(buffer, HeaderV2(**where, correlation_id=i32(correlation_id), client_id=client_id))
    else:
        _write_header_v1(buffer, HeaderV1(**where, correlation_id=i32(correlation_id), client_id=client_id))
    write(buffer, payload)
    return buffer.getvalue()


def decode_response(api_key: int, version: int, frame: bytes | memoryview) -> Any:
    """Returns the response in a frame without its length. Raises BadResponse."""
    read, header_bytes = _response_reader(api_key, version)
    try:
        response, _ = read(frame, header_bytes)
    except Exception as error:  # any failure of the reader means that the bytes from outside are wrong
        raise BadResponse(f"{type(error).__name__}: {error}") from error
    return response


@lru_cache(maxsize=64)
def _request_writer(api_key: int, version: int) -> tuple[Writer[Any], bool]:
    schema = load_request_schema(api_key, version)
    return entity_writer(schema), schema.__flexible__


@lru_cache(maxsize=64)
def _response_reader(api_key: int, version: int) -> tuple[Reader[Any], int]:
    schema = load_response_schema(api_key, version)
    # A flexible header ends with its tagged fields. No agent sends any.
    return entity_reader(schema), _CORRELATION_ID_BYTES + schema.__header_schema__.__flexible__


SMALLEST_RESPONSE_BYTES: Final = 4
"""Bytes of a correlation id."""
_CORRELATION_ID_AT: Final = slice(4, 8)
"""The position of the correlation id in a request: behind its api key and version."""


class LinkLost(Exception):
    """The other agent did not accept, or the connection ended. Requests without a response may have been
    carried out.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    correlation_id: bytes
    takes_long: bool
    response: asyncio.Future[bytes]


class ForwardLink(asyncio.Protocol):
    def __init__(
        self, address: AgentAddress, secrets: Secrets, tls: PeerTls | None, max_response_bytes: int
    ) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._secrets = secrets
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(max_response_bytes, min_frame_bytes=SMALLEST_RESPONSE_BYTES)
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._waiting: deque[_Waiting] = deque()
        self._head_since_s = 0.0
        self._one_opens = asyncio.Lock()
        self._lost: str | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    async def ask(self, hello: Hello, frame: bytes, *, takes_long: bool, connect_timeout_s: float) -> bytes:
        """Sends a request's frame and returns its response, both without their lengths. The first call
        connects. Raises LinkLost.
        """
        async with self._one_opens:  # a fair lock: requests leave in the order in which they came
            if self._transport is None and self._lost is None:
                await self._open(hello, connect_timeout_s)
            if self._transport is None or self._lost is not None:
                raise LinkLost(self._lost)
            waiting = _Waiting(
                correlation_id=frame[_CORRELATION_ID_AT],
                takes_long=takes_long,
                response=self._loop.create_future(),
            )
            if not self._waiting:
                self._head_since_s = self._loop.time()
            self._waiting.append(waiting)
            self._transport.writelines([len(frame).to_bytes(LENGTH_BYTES, "big"), frame])
        return await waiting.response

    def is_overdue(self, now_s: float, timeout_s: float) -> bool:
        """True if the next response is overdue. The requests behind it have waited for it."""
        return (
            bool(self._waiting) and not self._waiting[0].takes_long and now_s - self._head_since_s > timeout_s
        )

    def lose(self, reason: str) -> None:
        """Hangs up. Every waiting request gets LinkLost."""
        if self._lost is None:
            self._lost = reason
            if not self._accepted.done():
                self._accepted.cancel()
            for waiting in self._waiting:
                if not waiting.response.done():
                    waiting.response.set_exception(LinkLost(reason))
            self._waiting.clear()
            if self._transport is not None:
                self._transport.abort()

    async def _open(self, hello: Hello, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await connect_to_peer(
                    self._address.peer_host, self._address.peer_port, self._secrets, self, self._tls
                )
                assert self._transport is not None, "a connection that was made has a transport"
                self._transport.write(PREFACE + encode_hello(hello))
                await asyncio.wait({self._accepted})
        except TimeoutError:
            self.lose("it did not answer in time")
        except (OSError, NotAPeer) as error:
            self.lose(str(error))

    # --- the event loop's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._accepted.done():
            if not data.startswith(ACCEPTED):
                self.lose("it does not take forwarded requests")
                return
            self._accepted.set_result(None)
            data = data[len(ACCEPTED) :]
        self._frames.feed(data)
        try:
            while not isinstance(frame := self._frames.next_frame(), NeedData):
                self._answered(frame)
        except BadFrame as error:
            self.lose(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(str(exc or "it hung up"))

    def _answered(self, frame: bytes | memoryview) -> None:
        waiting = self._waiting.popleft() if self._waiting else None
        if waiting is None or frame[: len(waiting.correlation_id)] != waiting.correlation_id:
            if waiting is not None:
                self._waiting.appendleft(waiting)
            raise BadFrame("an answer to no request")
        self._head_since_s = self._loop.time()
        if not waiting.response.done():
            waiting.response.set_result(bytes(frame))


log = logging.getLogger("tidelog")

_LOOK_EVERY_S: Final = 1.0
_LinkKey: TypeAlias = tuple[NodeId, int]


class Forwarding:
    """One per agent in one-address mode. `run` watches the links of all connections."""

    def __init__(
        self, dispatch: Dispatch, membership: Membership, settings: AgentSettings, metrics: Metrics
    ) -> None:
        self.dispatch = dispatch
        self.membership = membership
        self.settings = settings
        self.metrics = metrics
        self._connections: set[ConnectionForwards] = set()
        self.is_draining = False

    def of_connection(self, state: ConnectionState) -> "ConnectionForwards":
        """Makes the links of a new client connection, which closes them."""
        forwards = ConnectionForwards(self, state)
        self._connections.add(forwards)
        return forwards

    def closed(self, forwards: "ConnectionForwards") -> None:
        self._connections.discard(forwards)

    async def run(self) -> None:
        """Until cancelled, gives up links to agents that left the ring, and links with an overdue
        response.
        """
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Gives up links to agents that are gone, now: the ring has changed."""
        now_s = asyncio.get_running_loop().time()
        for forwards in self._connections:
            forwards.look(now_s)

    def drain(self) -> None:
        """Ends the requests that wait for other agents, and refuses further ones: their clients ask again
        elsewhere.
        """
        self.is_draining = True
        for forwards in self._connections:
            forwards.lose_all("this agent stops")


class ConnectionForwards:
    """The links of one client connection, one for each coordinator that it has asked."""

    def __init__(self, forwarding: Forwarding, state: ConnectionState) -> None:
        self._forwarding = forwarding
        self._state = state
        self._links: dict[_LinkKey, ForwardLink] = {}

    async def answer(
        self, request: Request, frame: bytes, context: RequestContext[UsesOverload]
    ) -> list[Chunk] | None:
        """Returns the response to a request about groups, from the coordinator or from this agent."""
        places = {self._coordinator(group) for group in groups_of(request.api.key, request.payload)}
        if len(places) > 1:
            return await self._respond_in_parts(request, context)
        coordinator = places.pop() if places else None
        if coordinator is not None:
            try:
                response = await self._ask(coordinator, frame, request, context)
            except LinkLost:
                pass
            else:
                return [len(response).to_bytes(LENGTH_BYTES, "big"), response]
        return await self._forwarding.dispatch.answer(request, context)

    def look(self, now_s: float) -> None:
        ring = self._forwarding.membership.ring
        for (node_id, incarnation), link in self._links.items():
            agent = ring.agent(node_id)
            if agent is None or agent.incarnation != incarnation:
                link.lose("it has left the cluster")
            elif link.is_overdue(now_s, self._forwarding.settings.forward_timeout_s):
                link.lose("its answer is overdue")
        self._links = {key: link for key, link in self._links.items() if not link.is_lost}

    def lose_all(self, reason: str) -> None:
        for link in self._links.values():
            link.lose(reason)
        self._links.clear()

    def close(self) -> None:
        """The client connection has ended."""
        self.lose_all("the client hung up")
        self._forwarding.closed(self)

    def _coordinator(self, group: str) -> LiveAgent | None:
        """Returns the agent to ask. None: this one."""
        membership = self._forwarding.membership
        tenant = self._state.tenant_name  # the request has the names that the tenant's clients know
        of_all = group if tenant is None else prefix_of(tenant) + group
        agent, self_ = membership.ring.coordinator(f"group/{of_all}"), membership.self_
        if agent is None or self_ is None or agent.node_id == self_.node_id:
            return None
        return agent

    async def _respond_in_parts(self, request: Request, context: RequestContext[UsesOverload]) -> list[Chunk]:
        parts = split(request.api.key, request.payload, self._coordinator)
        responses = await asyncio.gather(
            *(self._part(replace(request, payload=part), place, context) for place, part in parts.items())
        )
        return self._forwarding.dispatch.encode(request, join(request.api.key, request.payload, responses))

    async def _part(
        self, request: Request, coordinator: LiveAgent | None, context: RequestContext[UsesOverload]
    ) -> Any:
        if coordinator is not None:
            frame = encode_request(
                request.api.key, request.version, request.correlation_id, request.client_id, request.payload
            )
            try:
                response = await self._ask(coordinator, frame, request, context)
                return decode_response(request.api.key, request.version, response)
            except BadResponse as error:
                log.warning(
                    "forwarded request answered with nonsense", extra=_fields(coordinator, str(error))
                )
            except LinkLost:
                pass
        return await self._forwarding.dispatch.respond(request, context)

    async def _ask(
        self, coordinator: LiveAgent, frame: bytes, request: Request, context: RequestContext[UsesOverload]
    ) -> bytes:  # fmt: skip
        forwarding = self._forwarding
        takes_long = waits_for_members(request.api.key)
        if takes_long and forwarding.is_draining:
            raise LinkLost("this agent stops")
        link = self._link(coordinator)
        if takes_long and context.turn is not None:
            context.turn.done()  # requests leave on a link in the order in which they came
        try:
            response = await link.ask(
                Hello(
                    node_id=self._node_id(),
                    zone=forwarding.settings.zone,
                    client=self._state.peer,
                    principal=self._state.principal,
                ),
                frame,
                takes_long=takes_long,
                connect_timeout_s=forwarding.settings.forward_connect_timeout_s,
            )
        except LinkLost as lost:
            forwarding.metrics.forwarded.labels("lost").inc()
            log.info("forwarded request not answered", extra=_fields(coordinator, str(lost)))
            raise
        forwarding.metrics.forwarded.labels("answered").inc()
        return response

    def _link(self, coordinator: LiveAgent) -> ForwardLink:
        key = (coordinator.node_id, coordinator.incarnation)
        link = self._links.get(key)
        if link is None or link.is_lost:
            forwarding = self._forwarding
            link = self._links[key] = ForwardLink(
                coordinator.address,
                forwarding.membership.peer_secrets,
                forwarding.membership.peer_tls,
                forwarding.settings.max_request_bytes,
            )
        return link

    def _node_id(self) -> NodeId:
        self_ = self._forwarding.membership.self_
        return NodeId(-1) if self_ is None else self_.node_id


def _fields(coordinator: LiveAgent, reason: str) -> dict[str, object]:
    return {"coordinator": coordinator.node_id, "reason": reason}
