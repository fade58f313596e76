"""The client of an agent's `/v1/topics`, with errors a person can act on."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from tidelog.http_client import ask


class TopicsClient:
    """Use as a context manager; every call raises `UserError`."""

    def __init__(self, http_url: str, timeout_s: float) -> None:
        self._url = http_url.rstrip("/")
        self._client = httpx.Client(timeout=timeout_s)

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

    def alter(self, name: str, partitions: int | None, put: Mapping[str, str], remove: Sequence[str]) -> dict[str, Any]:
        """The topic as it is afterwards."""
        change = {"partitions": partitions, "set": dict(put), "remove": list(remove)}
        return self._ask("PATCH", f"/{quote(name, safe='')}", json=change)

    def delete(self, name: str) -> dict[str, Any]:
        """The topic that is gone."""
        return self._ask("DELETE", f"/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return ask(self._client, method, f"{self._url}/v1/topics{path}", **more)
