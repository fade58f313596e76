"""`/v1/cluster`: the cluster's agents. `/v1/clients`: the Kafka clients connected to this agent, one entry
per connection, in pages of bounded size.
"""

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query

from agent.http.parts import HttpParts
from agent.kafka.context import ConnectionState
from agent.kafka.routing.routing import zone_of_client
from agent.write_path.producer_window import advice
from sequencer.database.database import SequencerUnavailable


class ClusterApi:
    """The agents with a valid lease, as the database sees them."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """Makes the routes under /v1/cluster."""
        router = APIRouter(prefix="/v1/cluster", tags=["cluster"])
        router.add_api_route("", self.describe, methods=["GET"])
        return router

    async def describe(self) -> dict[str, Any]:
        """Returns the cluster's id, this agent's node id, and every live agent."""
        sequencer = self._parts.sequencer()
        if sequencer is None:
            raise SequencerUnavailable("The agent has not reached its database yet; /ready says why.")
        return {
            "cluster": self._parts.cluster,
            "cluster_id": await sequencer.cluster.cluster_id(),
            "node_id": self._parts.node_id(),
            "zone": self._parts.zone,
            "agents": [
                {
                    "node_id": agent.node_id,
                    "zone": agent.address.zone,
                    "kafka": f"{agent.address.kafka_host}:{agent.address.kafka_port}",
                    "peer": f"{agent.address.peer_host}:{agent.address.peer_port}",
                    "http_url": agent.address.http_url,
                }
                for agent in await sequencer.agents.live()
            ],
        }


_MAX_PAGE = 1_000


class ClientsApi:
    """Shows what the agent's connections have noted of their clients."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """Makes the routes under /v1/clients."""
        router = APIRouter(prefix="/v1/clients", tags=["cluster"])
        router.add_api_route("", self.list_connections, methods=["GET"])
        return router

    async def list_connections(
        self,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
    ) -> dict[str, Any]:
        """Returns one page, by connection id. Pass `next` as `after` for the next page; null at the end."""
        later = (state for state in self._parts.clients() if state.connection_id > after)
        found = list(islice(later, limit + 1))
        page = found[:limit]
        return {
            "node_id": self._parts.node_id(),
            "zone": self._parts.zone,
            "connections": [_as_json(state) for state in page],
            "next": page[-1].connection_id if len(found) > limit else None,
        }


def _as_json(state: ConnectionState) -> dict[str, Any]:
    """`zone` is what the client says, null if it says nothing. `tenant` is null for a client of none. The
    software is empty before version 3 of ApiVersions. `advice` is what a producer that its own window limits
    should set; null: no advice.
    """
    return {
        "connection_id": state.connection_id,
        "address": state.peer,
        "client_id": state.client_id,
        "tenant": state.tenant_name,
        "zone": zone_of_client(state.client_id),
        "software_name": state.software_name,
        "software_version": state.software_version,
        "connected_at": state.connected_at.isoformat(timespec="milliseconds"),
        "requests": state.requests,
        "groups": list(state.groups),
        "advice": advice(state.window, state.software_name),
    }
