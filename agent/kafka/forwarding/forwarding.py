"""Requests that belong to another agent's groups, forwarded to it: one-address mode (docs/design/zones.md#forwarding).

All agents stand behind one address, so a client's request comes to any of them. What names a group is sent to the
agent that the ring names as the group's coordinator, as the client's bytes, marked as forwarded; there it is served as
if the client had come itself, or answered NOT_COORDINATOR, and never passed on.

Promises: one connection per client connection and coordinator, so that a client that waits for a rebalance holds up
nobody else, and what a client sends in order arrives in order; a coordinator that is gone, silent or refuses is no
coordinator any more: this agent's own handler answers in its place, which is NOT_COORDINATOR unless the ring has
meanwhile named this agent; nobody waits for an agent that has left the ring; a client that hangs up takes its
forwarded requests with it.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final, TypeAlias

from agent.kafka.context import ConnectionState, RequestContext
from agent.kafka.dispatch import Dispatch, Request
from agent.kafka.forwarding.forward_link import ForwardLink, LinkLost
from agent.kafka.forwarding.forward_protocol import Hello
from agent.kafka.forwarding.group_requests import groups_of, join, split, waits_for_members
from agent.kafka.forwarding.request_codec import BadResponse, decode_response, encode_request
from agent.kafka.transport.frames import LENGTH_BYTES
from agent.kafka.transport.vectored import Chunk
from agent.kafka.uses import UsesOverload
from agent.metrics import Metrics
from agent.settings import AgentSettings
from cache_ring.ring.membership import Membership
from sequencer.cluster.agents import LiveAgent
from storage.identifiers import NodeId

log = logging.getLogger("tidelog")

_LOOK_EVERY_S: Final = 1.0
_LinkKey: TypeAlias = tuple[NodeId, int]


class Forwarding:
    """One per agent in one-address mode; `run` watches over the links of all connections."""

    def __init__(self, dispatch: Dispatch, membership: Membership, settings: AgentSettings, metrics: Metrics) -> None:
        self.dispatch = dispatch
        self.membership = membership
        self.settings = settings
        self.metrics = metrics
        self._connections: set[ConnectionForwards] = set()
        self.is_draining = False

    def of_connection(self, state: ConnectionState) -> "ConnectionForwards":
        """What a new client connection forwards with; it is closed by that connection."""
        forwards = ConnectionForwards(self, state)
        self._connections.add(forwards)
        return forwards

    def closed(self, forwards: "ConnectionForwards") -> None:
        self._connections.discard(forwards)

    async def run(self) -> None:
        """Give up links to agents that have left the ring, and those whose answer is overdue, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Give up links to agents that are gone, now: the ring has changed."""
        now_s = asyncio.get_running_loop().time()
        for forwards in self._connections:
            forwards.look(now_s)

    def drain(self) -> None:
        """Let those go who wait for other agents, and those who would: they are told to ask again, elsewhere."""
        self.is_draining = True
        for forwards in self._connections:
            forwards.lose_all("this agent stops")


class ConnectionForwards:
    """The links of one client connection, one for each coordinator it has asked."""

    def __init__(self, forwarding: Forwarding, state: ConnectionState) -> None:
        self._forwarding = forwarding
        self._state = state
        self._links: dict[_LinkKey, ForwardLink] = {}

    async def answer(self, request: Request, frame: bytes, context: RequestContext[UsesOverload]) -> list[Chunk] | None:
        """The answer to a request about groups, whoever gives it."""
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
        """The agent to ask; None: this one."""
        membership = self._forwarding.membership
        agent, self_ = membership.ring.coordinator(f"group/{group}"), membership.self_
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
                log.warning("forwarded request answered with nonsense", extra=_fields(coordinator, str(error)))
            except LinkLost:
                pass
        return await request.api.code.handle(request.payload, context)

    async def _ask(
        self, coordinator: LiveAgent, frame: bytes, request: Request, context: RequestContext[UsesOverload]
    ) -> bytes:  # fmt: skip
        forwarding = self._forwarding
        takes_long = waits_for_members(request.api.key)
        if takes_long and forwarding.is_draining:
            raise LinkLost("this agent stops")
        link = self._link(coordinator)
        if takes_long and context.turn is not None:
            context.turn.done()  # requests leave on a link in the order in which they come to it
        try:
            response = await link.ask(
                Hello(node_id=self._node_id(), zone=forwarding.settings.zone, client=self._state.peer),
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
                coordinator.address, forwarding.membership.peer_secrets, forwarding.settings.max_request_bytes
            )
        return link

    def _node_id(self) -> NodeId:
        self_ = self._forwarding.membership.self_
        return NodeId(-1) if self_ is None else self_.node_id


def _fields(coordinator: LiveAgent, reason: str) -> dict[str, object]:
    return {"coordinator": coordinator.node_id, "reason": reason}
