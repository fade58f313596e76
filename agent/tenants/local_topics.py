"""The topics of a tenant: as handlers see them (`OwnTopics`, with the cluster's names) and as its groups do
(`LocalTopics`, with the names of its clients).

Promise: what belongs to others is unknown here, by name, by id, and in lists.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from agent.tenants.tenant import Tenant
from agent.topic_directory import TopicDirectory
from sequencer.tenants.tenant_names import local_name, prefix_of, tenant_of
from sequencer.topics.topics import Topic, UnknownTopic
from storage.identifiers import TopicId


class OwnTopics:
    """What a handler may ask the directory of topics. What it does not limit has names that belong to the
    tenant already.
    """

    def __init__(self, directory: TopicDirectory, tenant: Tenant) -> None:
        self._directory = directory
        self._tenant = tenant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    def known(self, key: str | TopicId) -> Topic | None:
        found = self._directory.known(key)
        return found if found is not None and self._tenant.owns(found.name) else None

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        return await self._directory.by_name([name for name in names if self._tenant.owns(name)])

    async def fresh(self, names: Collection[str]) -> dict[str, Topic]:
        return await self._directory.fresh([name for name in names if self._tenant.owns(name)])

    async def by_id(self, topic_ids: Collection[TopicId]) -> dict[TopicId, Topic]:
        found = await self._directory.by_id(topic_ids)
        return {topic_id: topic for topic_id, topic in found.items() if self._tenant.owns(topic.name)}

    async def all(self) -> tuple[Topic, ...]:
        return await self._directory.of_tenant(self._tenant.name)

    async def delete_by_id(self, topic_id: TopicId) -> Topic:
        """Raises UnknownTopic, SequencerUnavailable."""
        if topic_id not in await self.by_id([topic_id]):
            raise UnknownTopic(f"There is no topic of id {topic_id}.")
        return await self._directory.delete_by_id(topic_id)


class LocalTopics:
    """What a group may ask the directory of topics."""

    def __init__(self, directory: TopicDirectory, tenant: str) -> None:
        self._directory = directory
        self._tenant = tenant
        self._prefix = prefix_of(tenant)

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        found = await self._directory.by_name([self._prefix + name for name in names])
        return {(renamed := _renamed(topic)).name: renamed for topic in found.values()}

    async def all(self) -> tuple[Topic, ...]:
        return tuple(_renamed(topic) for topic in await self._directory.of_tenant(self._tenant))

    async def create(self, name: str, partition_count: int, config: Mapping[str, str]) -> Topic:
        return _renamed(await self._directory.create(self._prefix + name, partition_count, config))


class UnownedTopics:
    """What a group that belongs to no tenant may ask: expressions match no topic of a tenant."""

    def __init__(self, directory: TopicDirectory) -> None:
        self._directory = directory

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        return await self._directory.by_name(names)

    async def create(self, name: str, partition_count: int, config: Mapping[str, str]) -> Topic:
        return await self._directory.create(name, partition_count, config)

    async def all(self) -> tuple[Topic, ...]:
        return tuple(topic for topic in await self._directory.all() if tenant_of(topic.name) is None)


GroupTopics: TypeAlias = LocalTopics | UnownedTopics


def topics_of_tenant(directory: TopicDirectory, tenant: str | None) -> GroupTopics:
    """Returns the topics as groups of the tenant see them, or as groups of none."""
    return UnownedTopics(directory) if tenant is None else LocalTopics(directory, tenant)


def _renamed(topic: Topic) -> Topic:
    return replace(topic, name=local_name(topic.name))
