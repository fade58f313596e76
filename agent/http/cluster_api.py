"""`/v1/cluster`: who is there."""

from typing import Any

from fastapi import APIRouter

from agent.http.parts import HttpParts
from sequencer.database.database import SequencerUnavailable


class ClusterApi:
    """The agents with a valid lease, as the database sees them."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """The routes under /v1/cluster."""
        router = APIRouter(prefix="/v1/cluster", tags=["cluster"])
        router.add_api_route("", self.describe, methods=["GET"])
        return router

    async def describe(self) -> dict[str, Any]:
        """The cluster's id, the agent asked, and every live agent."""
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
