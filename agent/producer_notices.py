"""Says in the log which producers are limited by their own windows, and what to set (docs/tuning.md).

Promises one line per client id, and at most so many as the setting says.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from agent.kafka.context import ConnectionState
from agent.settings import AgentSettings
from agent.write_path.producer_advice import advice

log = logging.getLogger("tidelog")


class ProducerNotices:
    def __init__(self, clients: Callable[[], Iterable[ConnectionState]], settings: AgentSettings) -> None:
        self._clients = clients
        self._settings = settings
        self._advised: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._settings.producer_advice_look_s)
            self.look()

    def look(self) -> None:
        """Logs what is new."""
        for client in self._clients():
            name = client.client_id or ""
            if name in self._advised or len(self._advised) >= self._settings.producer_advice_logged:
                continue
            said = advice(client.window, client.software_name)
            if said is not None:
                self._advised.add(name)
                log.info(
                    "a producer is limited by its own window",
                    extra={"client_id": name, "library": client.software_name, "peer": client.peer, "advice": said},
                )
