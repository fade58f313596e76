"""`/v1/clients`: the Kafka clients connected to this agent, a connection each. Paged, so that an answer is bounded."""

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query

from agent.http.parts import HttpParts
from agent.kafka.context import ConnectionState
from agent.kafka.routing.client_zone import zone_of_client
from agent.write_path.producer_advice import advice

_MAX_PAGE = 1_000


class ClientsApi:
    """What the agent's connections have noted of their clients."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """The routes under /v1/clients."""
        router = APIRouter(prefix="/v1/clients", tags=["cluster"])
        router.add_api_route("", self.list_connections, methods=["GET"])
        return router

    async def list_connections(
        self, after: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE
    ) -> dict[str, Any]:
        """One page, by connection id; `next` is what to pass as `after`, or null at the end."""
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
    """`zone` is what the client says; null: nothing. The software is empty before version 3 of ApiVersions. `advice`:
    what a producer that its own window limits should set; null: nothing."""
    return {
        "connection_id": state.connection_id,
        "address": state.peer,
        "client_id": state.client_id,
        "zone": zone_of_client(state.client_id),
        "software_name": state.software_name,
        "software_version": state.software_version,
        "connected_at": state.connected_at.isoformat(timespec="milliseconds"),
        "requests": state.requests,
        "groups": list(state.groups),
        "advice": advice(state.window, state.software_name),
    }
