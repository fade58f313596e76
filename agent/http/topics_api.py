"""`/v1/topics`: the command line lists, creates, describes, alters and deletes topics with it.

Topic names follow Kafka's rule. Lists have pages by name (`after`, `limit`), so answers are bounded.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from agent.http.access import audited, is_allowed, require
from agent.http.errors import InvalidRequest
from agent.http.parts import HttpParts
from agent.kafka.audited_changes import shown_config
from agent.slices import Slices
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import CLUSTER_NAME, Operation, ResourceType
from sequencer.topics.known_configs import ENCRYPTION
from sequencer.topics.topic_config import KNOWN_CONFIGS, validate_config
from sequencer.topics.topics import Topic, UnknownTopic
from storage.identifiers import Partition

_MAX_PAGE = 1_000

ConfigMap = Annotated[dict[str, str], Field(max_length=100)]


class NewTopic(BaseModel):
    """The body of a creation. Without a partition count, the agent's default holds."""

    model_config = ConfigDict(extra="forbid")
    name: str
    partitions: int | None = Field(default=None, ge=1)
    config: ConfigMap = Field(default_factory=dict)


class TopicChange(BaseModel):
    """The body of an alteration: more partitions, configs to set, configs to remove."""

    model_config = ConfigDict(extra="forbid")
    partitions: int | None = Field(default=None, ge=1)
    set: ConfigMap = Field(default_factory=dict)
    remove: list[str] = Field(default_factory=list, max_length=100)


class TopicsApi:
    """The handlers. Each queries the sequencer once or twice."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """Makes the routes under /v1/topics."""
        router = APIRouter(prefix="/v1/topics", tags=["topics"])
        router.add_api_route("", self.list_topics, methods=["GET"])
        router.add_api_route("", self.create, methods=["POST"], status_code=201)
        router.add_api_route("/{name}", self.describe, methods=["GET"])
        router.add_api_route("/{name}", self.alter, methods=["PATCH"])
        router.add_api_route("/{name}", self.delete, methods=["DELETE"])
        return router

    async def list_topics(
        self, after: str = "", limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE
    ) -> dict[str, Any]:
        """Returns one page, by name. Pass `next` as `after` for the next page; null at the end."""
        found, slices = [], Slices()
        for topic in sorted(await self._sequencer().topics.list(), key=lambda topic: topic.name):
            if topic.name > after and is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                found.append(topic)
            await slices.look()
        page = found[:limit]
        return {
            "topics": [_as_json(topic) for topic in page],
            "next": page[-1].name if len(found) > limit else None,
        }

    async def create(self, request: Request, asked: NewTopic) -> dict[str, Any]:
        """Returns 201 with the topic, or 409 if the name is taken."""
        partitions = str(asked.partitions or self._parts.default_partitions)
        change = {"partitions": partitions, **_shown(asked.config)}
        with audited(self._parts.audit, request, "POST /v1/topics", asked.name, change):
            return await self._create(asked)

    async def _create(self, asked: NewTopic) -> dict[str, Any]:
        if not is_allowed(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            require(Operation.CREATE, ResourceType.TOPIC, asked.name)
        count = self._partition_count(asked.partitions or self._parts.default_partitions)
        return _as_json(await self._sequencer().topics.create(asked.name, count, asked.config))

    async def describe(self, name: str) -> dict[str, Any]:
        """Returns the topic with every config and the source of its value, and the offsets of every
        partition.
        """
        topic = await self._find(name)
        partitions = [(topic.topic_id, Partition(number)) for number in range(topic.partition_count)]
        bounds = await self._sequencer().coordinates.bounds(partitions)
        history = await self._sequencer().history.first_offsets(
            topic.topic_id, [partition for _, partition in partitions]
        )
        return {
            **_as_json(topic),
            "configs": _configs(topic) if _shows_configs(topic) else [],
            "offsets": [
                {
                    "partition": partition,
                    "log_start_offset": bounds[topic_id, partition].log_start_offset,
                    "high_watermark": bounds[topic_id, partition].high_watermark,
                    "last_stable_offset": bounds[topic_id, partition].last_stable_offset,
                    "history_start_offset": history.get(partition),
                }
                for topic_id, partition in partitions
                if (topic_id, partition) in bounds
            ],
        }

    async def alter(self, request: Request, name: str, change: TopicChange) -> dict[str, Any]:
        """Returns the topic as it is afterwards. Partitions can only be added."""
        asked: dict[str, str | None] = {**_shown(change.set), **dict.fromkeys(change.remove)}
        if change.partitions is not None:
            asked["partitions"] = str(change.partitions)
        with audited(self._parts.audit, request, "PATCH /v1/topics/{name}", name, asked):
            return await self._alter(name, change)

    async def _alter(self, name: str, change: TopicChange) -> dict[str, Any]:
        if change.partitions is not None:
            require(Operation.ALTER, ResourceType.TOPIC, name)
        if change.set or change.remove:
            require(Operation.ALTER_CONFIGS, ResourceType.TOPIC, name)
        for key, value in change.set.items():
            validate_config(key, value)  # before partitions are added: a refusal then changes nothing
        topic = await self._find(name)
        if change.partitions is not None:
            count = self._partition_count(change.partitions)
            if count != topic.partition_count:
                await self._sequencer().topics.add_partitions(name, count)
        if change.set or change.remove:
            await self._sequencer().topics.alter_config(name, change.set, change.remove)
        return _as_json(await self._find(name))

    async def delete(self, request: Request, name: str) -> dict[str, Any]:
        """Deletes the topic at once. Its records are collected later."""
        with audited(self._parts.audit, request, "DELETE /v1/topics/{name}", name, {}):
            return _as_json(await self._sequencer().topics.delete(name))

    def _partition_count(self, count: int) -> int:
        most = self._parts.max_partitions_per_topic
        if count > most:
            raise InvalidRequest(
                f"{count} partitions are more than TIDELOG_MAX_PARTITIONS_PER_TOPIC ({most}) allows."
            )
        return count

    async def _find(self, name: str) -> Topic:
        found = await self._sequencer().topics.by_name([name])
        if name not in found:
            raise UnknownTopic(f"There is no topic '{name}'.")
        return found[name]

    def _sequencer(self) -> Sequencer:
        sequencer = self._parts.sequencer()
        if sequencer is None:
            raise SequencerUnavailable("The agent has not reached its database yet; /ready says why.")
        return sequencer


def _shown(configs: Mapping[str, str]) -> dict[str, str | None]:
    return {name: shown_config(name, value) for name, value in configs.items()}


def _as_json(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": topic.partition_count,
        "config": dict(topic.config) if _shows_configs(topic) else {},
        "may_be_encrypted": ENCRYPTION in topic.config,
        "created_at": topic.created_at.isoformat(),
    }


def _shows_configs(topic: Topic) -> bool:
    return is_allowed(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name)


def _configs(topic: Topic) -> list[dict[str, Any]]:
    """`source` is `topic` for configs that were set, `default` for the others."""
    return [
        {
            "name": name,
            "value": topic.config.get(name, definition.default),
            "source": "topic" if name in topic.config else "default",
            "default": definition.default,
            "documentation": definition.documentation,
        }
        for name, definition in sorted(KNOWN_CONFIGS.items())
    ]
