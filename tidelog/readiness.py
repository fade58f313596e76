"""What the cluster's agents say of themselves in `/ready`, for commands that look for the reason of a fault."""

from collections.abc import Iterable, Sequence
from typing import Final

import httpx

from tidelog.errors import UserError
from tidelog.http_client import ask
from tidelog.process.settings import ClientSettings

_LONGEST_S: Final = 5.0


def complaints_of_cluster(settings: ClientSettings) -> Sequence[str]:
    """A sentence for each agent that is not ready, as far as agents can be asked."""
    if not settings.http_url:
        return ()
    url = settings.http_url.rstrip("/")
    try:
        with httpx.Client(timeout=_LONGEST_S) as client:
            agents = ask(client, "GET", f"{url}/v1/cluster")["agents"]
    except UserError:
        return complaints([("The agent", url)])
    return complaints((f"Agent {agent['node_id']} (zone {agent['zone']})", agent["http_url"]) for agent in agents)


def complaints(agents: Iterable[tuple[str, str]]) -> Sequence[str]:
    """The same of agents given by name and HTTP address. One that does not answer is left out."""
    found = []
    with httpx.Client(timeout=_LONGEST_S) as client:
        for name, http_url in agents:
            try:
                answer = client.get(f"{http_url.rstrip('/')}/ready")
                message = answer.json().get("message", "") if answer.is_error else ""
            except (httpx.HTTPError, ValueError):
                continue
            if message:
                found.append(f"{name} is not ready: {message}")
    return found
