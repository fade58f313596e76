"""Asks agents over HTTP where records are, and has them end the transactions of the sink. Synchronous, for
Spark's Python workers.

Promises:
- An agent that is away is passed over for the next. After the attempts that the settings allow, the last
  failure is raised.
- What an agent refuses (an unknown topic) is raised at once, with its words.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote

import httpx

from spark_source.http_login import LoginIncomplete, login_fix, login_headers
from spark_source.settings import SourceSettings
from storage.arrow.aborted_batches import AbortedIndex, AbortedTransaction


class AgentsUnavailable(Exception):
    """No agent answered."""


class RequestRefused(Exception):
    """An agent answered that this cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """`first_offset` is the oldest that the log or history has, `end_offset` the last stable offset."""

    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEnds:
    topic_id: str
    may_be_encrypted: bool
    """True if some records of the topic may need its keys."""
    partitions: Mapping[int, PartitionEnds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets `[first_offset, end_offset)` of a partition, in one object: a Parquet file, or a run of record
    batches whose bytes are `[position, position + length)` and whose offsets `[base_offset, last_offset]`.
    """

    kind: Literal["parquet", "raw"]
    first_offset: int
    end_offset: int
    object_key: str
    position: int
    length: int
    base_offset: int
    last_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """Of a run: the aborted transactions that overlap the piece, in the order of their markers."""


class Agents:
    def __init__(self, settings: SourceSettings) -> None:
        self._urls = [url.strip().rstrip("/") for url in settings.http_url.split(",") if url.strip()]
        if not self._urls or any(not url.startswith(("http://", "https://")) for url in self._urls):
            raise RequestRefused(
                f"option servers: {settings.http_url!r}; name an agent as http://host:8080, or set "
                "TIDELOG_HTTP_URL"
            )
        try:
            self._headers = login_headers(settings)
        except LoginIncomplete as incomplete:
            raise RequestRefused(str(incomplete)) from None
        self._settings = settings

    def topic(self, name: str) -> TopicEnds:
        """The topic's id, and where its partitions begin and end now."""
        found = self._ask("GET", f"/v1/topics/{quote(name, safe='')}")
        return TopicEnds(
            topic_id=found["topic_id"],
            may_be_encrypted=found["may_be_encrypted"],
            partitions={int(each["partition"]): _ends(each) for each in found["offsets"]},
        )

    def partition(self, topic: str, partition: int) -> PartitionEnds | None:
        """Where a partition begins and ends now; None: there is no such partition."""
        return self.topic(topic).partitions.get(partition)

    def pieces(self, topic: str, partition: int, from_offset: int, to_offset: int) -> Iterator[Piece]:
        """The pieces of a range, in offset order, a page at a time."""
        start: int | None = from_offset
        while start is not None and start < to_offset:
            asked = {
                "partition": partition,
                "from_offset": start,
                "to_offset": to_offset,
                "limit": self._settings.source_page_pieces,
            }
            page = self._ask("GET", f"/v1/topics/{quote(topic, safe='')}/coordinates", params=asked)
            aborted = AbortedIndex([AbortedTransaction(**entry) for entry in page["aborted"]])
            for found in page["pieces"]:
                piece = Piece(**found)
                if piece.kind == "raw":
                    own = aborted.overlapping(piece.first_offset, piece.end_offset)
                    piece = replace(piece, aborted=own) if own else piece
                yield piece
            start = page["next"]

    def bootstrap(self) -> str:
        """Kafka addresses of the live agents."""
        return ",".join(agent["kafka"] for agent in self._ask("GET", "/v1/cluster")["agents"])

    def commit_sink(self, batch: Mapping[str, Any]) -> Literal["now", "before"]:
        """Commits the batch, unless it was committed before. May be repeated, as all requests here."""
        committed: Literal["now", "before"] = self._ask("POST", "/v1/sinks/commit", json=batch)["committed"]
        return committed

    def abort_sink(self, batch: Mapping[str, Any]) -> None:
        self._ask("POST", "/v1/sinks/abort", json=batch)

    def _ask(self, method: str, path: str, **parameters: Any) -> Any:
        settings = self._settings
        failure = ""
        for attempt in range(settings.source_attempts):
            url = self._urls[attempt % len(self._urls)]
            if attempt:
                time.sleep(random.uniform(0, settings.source_retry_base_s * 2**attempt))
            try:
                # Reading the system's certificates costs more than the request.
                answer = httpx.request(
                    method,
                    f"{url}{path}",
                    **parameters,
                    headers=self._headers,
                    timeout=settings.source_http_timeout_s,
                    verify=url.startswith("https"),
                )
            except httpx.TransportError as error:
                failure = f"{url}: {type(error).__name__} {error}"
                continue
            if answer.status_code == httpx.codes.OK:
                return answer.json()
            if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                raise RequestRefused(
                    f"{url}{path}: {_message(answer)} {login_fix(answer.status_code)}".rstrip()
                )
            failure = f"{url}: {answer.status_code} {_message(answer)}"
        raise AgentsUnavailable(f"No agent answered {path}: {failure}. Checked option servers.")


def _ends(each: Mapping[str, Any]) -> PartitionEnds:
    in_history = each["history_start_offset"]
    log_start = each["log_start_offset"]
    return PartitionEnds(
        first_offset=log_start if in_history is None else min(log_start, in_history),
        end_offset=each["last_stable_offset"],
    )


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
