"""Agents over HTTP, with errors that a person can act on: topics, and what agents answer to `/ready`."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from spark_source.http_login import HttpLoginSettings, LoginIncomplete, login_fix, login_headers
from tidelog.errors import UserError
from tidelog.process.settings import ClientSettings

_FIXES: Mapping[str, str] = {
    "unknown_topic": "`tidelog topics list` shows those there are; `tidelog topics create` makes one.",
    "topic_exists": "`tidelog topics alter` changes it, `tidelog topics delete` removes it.",
    "sequencer_unavailable": "The agent cannot reach its database; its /ready says why.",
}
_LONGEST_S: Final = 5.0
"""The longest wait for an answer to `/ready`."""


def ask(client: httpx.Client, method: str, url: str, **more: Any) -> dict[str, Any]:
    """The JSON object that the agent answers at `url`, which includes the path. Raises `UserError`."""
    where = str(httpx.URL(url).copy_with(path="/", query=None)).rstrip("/")
    try:
        answer = client.request(method, url, **more)
    except httpx.TransportError as error:
        raise UserError(
            f"No agent answers at {where} ({error or type(error).__name__}).",
            "Does one run there? If not, correct TIDELOG_HTTP_URL.",
        ) from None
    try:
        found = answer.json()
    except ValueError:
        raise UserError(f"{where} is not a Tidelog agent: it answered {answer.status_code}.") from None
    if answer.is_error:
        fix = _FIXES.get(str(found.get("error")), "") or login_fix(answer.status_code)
        raise UserError(str(found.get("message", answer.text)), fix)
    return dict(found)


def logged_in(settings: HttpLoginSettings) -> dict[str, str]:
    """The headers that log a client in, if the settings name a user. Raises `UserError`."""
    try:
        return login_headers(settings)
    except LoginIncomplete as incomplete:
        raise UserError(str(incomplete)) from None


def may_send_login(url: str, *, named: str) -> bool:
    """True if a login may go to `url`, which an agent gave: over TLS, to the address that the user named, or
    within this machine.
    """
    given, own = httpx.URL(url), httpx.URL(named)
    if given.scheme == "https" or (given.scheme, given.host, given.port) == (own.scheme, own.host, own.port):
        return True
    try:
        return given.host == "localhost" or ip_address(given.host).is_loopback
    except ValueError:
        return False


class TopicsClient:
    """Use it as a context manager. Every call raises `UserError`."""

    def __init__(self, http_url: str, timeout_s: float, login: Mapping[str, str] | None = None) -> None:
        """`login`: as `logged_in` returns it."""
        self._url = http_url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s, headers=login)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def list(self) -> list[dict[str, Any]]:
        """Every topic, by name."""
        topics: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = self._ask("GET", "", params={"after": after})
            topics.extend(page["topics"])
            after = page["next"]
        return topics

    def create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> dict[str, Any]:
        """The new topic."""
        return self._ask("POST", "", json={"name": name, "partitions": partitions, "config": dict(config)})

    def describe(self, name: str) -> dict[str, Any]:
        """The topic with its offsets."""
        return self._ask("GET", f"/{quote(name, safe='')}")

    def alter(
        self, name: str, partitions: int | None, put: Mapping[str, str], remove: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the changed topic."""
        change = {"partitions": partitions, "set": dict(put), "remove": list(remove)}
        return self._ask("PATCH", f"/{quote(name, safe='')}", json=change)

    def delete(self, name: str) -> dict[str, Any]:
        """Returns the deleted topic."""
        return self._ask("DELETE", f"/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return ask(self._client, method, f"{self._url}/v1/topics{path}", **more)


def complaints_of_cluster(settings: ClientSettings) -> Sequence[str]:
    """A sentence for each agent that answers and is not ready."""
    if not settings.http_url:
        return ()
    url = settings.http_url.rstrip("/")
    try:
        with httpx.Client(timeout=_LONGEST_S, headers=logged_in(settings)) as client:
            agents = ask(client, "GET", f"{url}/v1/cluster")["agents"]
    except UserError:
        return complaints([("The agent", url)])
    return complaints(
        (f"Agent {agent['node_id']} (zone {agent['zone']})", agent["http_url"]) for agent in agents
    )


def complaints(agents: Iterable[tuple[str, str]]) -> Sequence[str]:
    """The same for agents given by name and HTTP address. Leaves out agents that do not answer."""
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
