"""Topics: their names, partitions and configs, and what administrators ask about partitions.

Promises: a name is free as soon as its topic is deleted. A topic id is never used twice. A deleted topic's
partitions take no further commit: their state is set under each partition's row lock, before their runs are
swept (docs/design/commit.md#topic-deletion).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from sequencer.commits.coordinates import PartitionKey
from sequencer.database.array_parameters import Int4Array, UuidArray
from sequencer.database.database import Database, Row
from sequencer.database.named_sql import load_statements
from sequencer.tenants.tenant_limits import Planned, TenantLimits
from sequencer.tenants.tenant_names import local_name, range_of, tenant_of
from sequencer.topics.known_configs import ENCRYPTION
from sequencer.topics.topic_config import KNOWN_CONFIGS, check_together, validate_config
from storage.identifiers import Partition, ProducerId, TopicId

SQL = load_statements("topics")
KEYS_SQL = load_statements("topic_keys")
ADMINISTRATION_SQL = load_statements("administration")
TENANTS_SQL = load_statements("tenants")

AUDIT_TOPIC = "__tidelog_audit"
"""The agents' audit trail (docs/audit.md). No client may make or write it, whatever its rights are."""
MOST_PARTITIONS = 100_000
_MOST_CHANGES = 1_000
"""As many changes as are kept (functions/count_topic_change.sql)."""
_NEVER = 2**62
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Of a topic as its clients see it. A tenant's topic has the tenant in front."""


class TopicExists(Exception):
    """There is a topic of this name."""


class UnknownTopic(Exception):
    """There is no topic of this name."""


class InvalidTopicName(Exception):
    """Kafka's rule: 1 to 249 of a-z A-Z 0-9 . _ - and neither `.` nor `..`."""


class CollidingTopicName(InvalidTopicName):
    """A topic exists whose name differs only in `.` and `_`."""


class InvalidPartitionCount(Exception):
    """Not a number of partitions that the topic can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    topic_id: TopicId
    name: str
    partition_count: int
    config: Mapping[str, str]
    """The configs that were set. `TopicConfig.of` gives their effect."""
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    number: int
    """How many times topics were made, changed or deleted so far."""
    topics: tuple[tuple[TopicId, str], ...] | None
    """The ids and names of the changed topics. None: any topic may have changed."""


def validate_topic_name(name: str) -> None:
    """Raises InvalidTopicName."""
    local = local_name(name)
    if local in (".", "..") or not _LEGAL_NAME.fullmatch(local):
        raise InvalidTopicName(
            f"Topic name {local[:300]!r} is illegal: 1 to 249 of a-z A-Z 0-9 . _ - and neither '.' nor '..'"
        )


def _check_is_no_audit_topic(name: str) -> None:
    """Raises InvalidTopicName: whoever made it would choose how long events are kept."""
    if name.replace(".", "_") == AUDIT_TOPIC:
        raise InvalidTopicName(f"Topic name {name!r} is taken: agents make {AUDIT_TOPIC} themselves.")


class Topics:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, partition_count: int, config: Mapping[str, str], *, is_agents_own: bool = False
    ) -> Topic:
        """`is_agents_own`: it may be the audit trail's. Raises TopicExists, InvalidTopicName,
        InvalidPartitionCount, InvalidConfig, TenantLimitReached, and CommitOutcomeUnknown if it may exist
        now.
        """
        if not is_agents_own:
            _check_is_no_audit_topic(name)
        await self._check_new(name, partition_count, config)
        asked = {"topic_id": uuid4(), "name": name, "partition_count": partition_count}
        tenant = tenant_of(name)
        try:
            if tenant is not None:
                return await self._create_for(tenant, asked, _trimmed(config))
            rows = await self._database.write(SQL["create_topic"], **asked, config=Jsonb(_trimmed(config)))
        except UniqueViolation as error:
            raise TopicExists(f"Topic '{name}' already exists.") from error
        return _topic(rows[0])

    async def check_creation(
        self, name: str, partition_count: int, config: Mapping[str, str], planned: Planned
    ) -> Mapping[str, str]:
        """Creates nothing. Returns the configs that the topic would have, and adds it to what the request
        would make. Raises what `create` would raise now, except TopicExists.
        """
        _check_is_no_audit_topic(name)
        await self._check_new(name, partition_count, config)
        tenant, kept = tenant_of(name), _trimmed(config)
        if tenant is not None:
            limits, has = await self._limits_and_numbers(tenant)
            topics, partitions = planned.of(tenant)
            limits.check_numbers(has.topics + topics + 1, has.partitions + partitions + partition_count)
            kept = limits.kept_within(kept)
        planned.add(tenant, 1, partition_count)
        return kept

    async def check_growth(self, topic: Topic, total: int, planned: Planned) -> None:
        """Adds no partitions to the topic. Raises what `add_partitions` would raise now for its tenant."""
        tenant, added = tenant_of(topic.name), total - topic.partition_count
        if tenant is not None:
            limits, has = await self._limits_and_numbers(tenant)
            limits.check_numbers(has.topics, has.partitions + planned.of(tenant)[1] + added)
        planned.add(tenant, 0, added)

    async def check_alteration(self, topic: Topic, set: Mapping[str, str], remove: Collection[str]) -> None:
        """Alters nothing. Raises what `alter_config` would raise now for the topic's tenant."""
        tenant = tenant_of(topic.name)
        if tenant is not None:
            limits, _ = await self._limits_and_numbers(tenant)
            kept = {**topic.config, **_trimmed(set)}
            limits.kept_within({name: value for name, value in kept.items() if name not in remove})

    async def _limits_and_numbers(self, tenant: str) -> tuple[TenantLimits, Row]:
        rows = await self._database.read(TENANTS_SQL["limits_of_tenant"], name=tenant)
        if not rows:
            raise InvalidTopicName(f"There is no tenant '{tenant}'.")
        [has] = await self._database.read(TENANTS_SQL["numbers_of_tenant"], **range_of(tenant))
        return TenantLimits.of(rows[0].limits), has

    async def _check_new(self, name: str, partition_count: int, config: Mapping[str, str]) -> None:
        _validate_partition_count(partition_count)
        await self.check_name(name)
        for setting, value in config.items():
            validate_config(setting, value)
        check_together(config)

    async def _create_for(self, tenant: str, asked: Mapping[str, object], config: Mapping[str, str]) -> Topic:
        """Raises TenantLimitReached, InvalidTopicName, UniqueViolation."""
        async with self._database.transaction() as connection:
            limits = await _locked_limits(connection, tenant)
            if limits is None:
                raise InvalidTopicName(f"There is no tenant '{tenant}'.")
            has = await _numbers_of(connection, tenant)
            limits.check_numbers(has.topics + 1, has.partitions + int(str(asked["partition_count"])))
            parameters = {**asked, "config": Jsonb(limits.kept_within(config))}
            row = await (await connection.execute(SQL["create_topic"], parameters)).fetchone()
        return _topic(row)

    async def check_name(self, name: str) -> None:
        """Raises InvalidTopicName if no topic can have this name, CollidingTopicName if it collides with an
        existing one."""
        validate_topic_name(name)
        if "." not in name and "_" not in name:
            return
        rows = await self._database.read(SQL["colliding_topic"], name=name)
        if rows:
            raise CollidingTopicName(
                f"Topic '{name}' collides with existing topic: {min(row.name for row in rows)}"
            )

    async def delete(self, name: str) -> Topic:
        """Frees the name and stops the partitions. Their runs are swept later. Returns the deleted topic.
        Raises UnknownTopic.
        """
        _refuse_impossible(name)
        return await self._delete(f"There is no topic '{name}'.", "mark_topic_deleted", {"name": name})

    async def delete_by_id(self, topic_id: TopicId) -> Topic:
        """As `delete`, for the topic with this id, whatever its name. Raises UnknownTopic."""
        unknown = f"There is no topic of id {topic_id}."
        return await self._delete(unknown, "mark_topic_deleted_by_id", {"topic_id": topic_id})

    async def _delete(self, unknown: str, statement: str, parameters: Mapping[str, object]) -> Topic:
        async with self._database.transaction() as connection:
            row = await (await connection.execute(SQL[statement], parameters)).fetchone()
            if row is None:
                raise UnknownTopic(unknown)
            await connection.execute(SQL["lock_partitions_of_topic"], {"topic_id": row.topic_id})
            await connection.execute(SQL["stop_partitions_of_topic"], {"topic_id": row.topic_id})
            await connection.execute(KEYS_SQL["destroy"], {"topic_id": row.topic_id})
        return _topic(row)

    async def list(self) -> Sequence[Topic]:
        """All live topics, by name."""
        return [_topic(row) for row in await self._database.read(SQL["list_topics"])]

    async def of_tenants(self, tenants: Collection[str]) -> dict[str, tuple[Topic, ...]]:
        """Returns all live topics of each tenant, by name."""
        found: dict[str, list[Topic]] = {tenant: [] for tenant in tenants}
        for row in await self._database.read(SQL["list_topics_of_tenants"], tenants=list(tenants)):
            found[row.tenant].append(_topic(row))
        return {tenant: tuple(topics) for tenant, topics in found.items()}

    async def changes(self, since: int | None = None) -> TopicChanges:
        """Returns what was made, changed or deleted since `changes(...)` returned this number."""
        rows = await self._database.read(
            SQL["topic_changes"], since=_NEVER if since is None else since, most=_MOST_CHANGES
        )
        number, found = int(rows[0].changes), [row for row in rows if row.change is not None]
        if since is None or len({row.change for row in found}) != number - since:
            return TopicChanges(number=number, topics=None)
        return TopicChanges(number=number, topics=tuple((TopicId(row.topic_id), row.name) for row in found))

    async def by_name(self, names: Collection[str]) -> dict[str, Topic]:
        """The live topics among `names`."""
        possible = [name for name in names if _can_exist(name)]
        rows = await self._database.read(SQL["topics_by_name"], names=possible)
        return {row.name: _topic(row) for row in rows}

    async def by_id(self, topic_ids: Collection[TopicId]) -> dict[TopicId, Topic]:
        """The live topics among `topic_ids`."""
        rows = await self._database.read(SQL["topics_by_id"], topic_ids=list(topic_ids))
        return {TopicId(row.topic_id): _topic(row) for row in rows}

    async def add_partitions(self, name: str, total: int) -> Topic:
        """Raises the number of partitions to `total`. Raises UnknownTopic, TenantLimitReached, and
        InvalidPartitionCount if `total` is not higher.
        """
        _refuse_impossible(name)
        _validate_partition_count(total)
        tenant = tenant_of(name)
        async with self._database.transaction() as connection:
            limits = None if tenant is None else await _locked_limits(connection, tenant)
            row = await (await connection.execute(SQL["lock_topic"], {"name": name})).fetchone()
            if row is None:
                raise UnknownTopic(f"There is no topic '{name}'.")
            if total <= row.partition_count:
                raise InvalidPartitionCount(
                    f"Topic '{name}' has {row.partition_count} partitions: they can only become more."
                )
            if tenant is not None and limits is not None:
                has = await _numbers_of(connection, tenant)
                limits.check_numbers(has.topics, has.partitions + total - row.partition_count)
            parameters = {"topic_id": row.topic_id, "first": row.partition_count, "total": total}
            grown = await (await connection.execute(SQL["add_partitions"], parameters)).fetchone()
        return _topic(grown)

    async def alter_config(self, name: str, set: Mapping[str, str], remove: Collection[str] = ()) -> Topic:
        """Sets some configs and returns others to their defaults, in one step. Raises UnknownTopic,
        InvalidConfig, TenantLimitReached."""
        _refuse_impossible(name)
        for setting, value in set.items():
            validate_config(setting, value)
        known = [setting for setting in remove if setting in KNOWN_CONFIGS]  # no other was ever set
        tenant = tenant_of(name)
        async with self._database.transaction() as connection:
            limits = None if tenant is None else await _locked_limits(connection, tenant)
            row = await (await connection.execute(SQL["lock_topic"], {"name": name})).fetchone()
            if row is None:
                raise UnknownTopic(f"There is no topic '{name}'.")
            if ENCRYPTION in known and ENCRYPTION in row.config:
                # Sealed batches may be there, and readers must look for them.
                known.remove(ENCRYPTION)
                set = {**set, ENCRYPTION: "off"}
            given = _trimmed(set)
            kept = {**row.config, **given}
            kept = {setting: value for setting, value in kept.items() if setting not in known}
            if limits is not None:
                within = limits.kept_within(kept)
                given |= {setting: value for setting, value in within.items() if setting not in kept}
                known = [setting for setting in known if setting not in within]
            check_together(kept)
            parameters = {"topic_id": row.topic_id, "set": Jsonb(given), "remove": known}
            altered = await (await connection.execute(SQL["alter_config"], parameters)).fetchone()
        return _topic(altered)


async def _locked_limits(connection: AsyncConnection[Row], tenant: str) -> TenantLimits | None:
    """Keeps others from making topics of the tenant until the transaction ends. None: no such tenant."""
    row = await (await connection.execute(TENANTS_SQL["lock_tenant"], {"name": tenant})).fetchone()
    return None if row is None else TenantLimits.of(row.limits)


async def _numbers_of(connection: AsyncConnection[Row], tenant: str) -> Row:
    """Returns the numbers of the tenant's topics and of their partitions."""
    row = await (await connection.execute(TENANTS_SQL["numbers_of_tenant"], range_of(tenant))).fetchone()
    assert row is not None, "a count is one row"
    return row


def _trimmed(config: Mapping[str, str]) -> dict[str, str]:
    """Strips white space around values."""
    return {name: value.strip() for name, value in config.items()}


def _can_exist(name: str) -> bool:
    """True if Postgres can be asked for this name: clients send any characters, and Postgres takes no NUL."""
    return _LEGAL_NAME.fullmatch(local_name(name)) is not None


def _refuse_impossible(name: str) -> None:
    if not _can_exist(name):
        raise UnknownTopic(f"There is no topic {name[:300]!r}.")


def _validate_partition_count(count: int) -> None:
    if not 1 <= count <= MOST_PARTITIONS:
        raise InvalidPartitionCount(f"A topic has between 1 and {MOST_PARTITIONS} partitions, not {count}.")


def _topic(row: Row) -> Topic:
    return Topic(
        topic_id=TopicId(row.topic_id),
        name=row.name,
        partition_count=row.partition_count,
        config=row.config,
        created_at=row.created_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """What is remembered of a producer in one partition."""

    producer_id: ProducerId
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int


class Administration:
    """Answers administrators' questions about partitions: their sizes, and which producers have written."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sizes(self, topic_ids: Collection[TopicId]) -> dict[PartitionKey, int]:
        """Returns the bytes of records that each live partition of these topics refers to in the store."""
        rows = await self._database.read(ADMINISTRATION_SQL["sizes"], topic_ids=list(topic_ids))
        return {(TopicId(row.topic_id), Partition(row.partition)): row.size_bytes for row in rows}

    async def active_producers(
        self, partitions: Sequence[PartitionKey], cap: int
    ) -> dict[PartitionKey, tuple[ActiveProducer, ...]]:
        """Returns idempotent producers of each, by id: those with the oldest open transactions, and the
        youngest ids, `cap` of either. Missing partitions are left out.
        """
        rows = await self._database.read(
            ADMINISTRATION_SQL["active_producers"],
            topic_ids=UuidArray(topic_id for topic_id, _ in partitions),
            partitions=Int4Array(partition for _, partition in partitions),
            cap=cap,
        )
        found: dict[PartitionKey, list[ActiveProducer]] = {}
        for row in rows:
            producers = found.setdefault((TopicId(row.topic_id), Partition(row.partition)), [])
            if row.producer_id is not None:
                producers.append(
                    ActiveProducer(
                        producer_id=ProducerId(row.producer_id),
                        producer_epoch=row.producer_epoch,
                        last_sequence=row.last_sequence,
                        last_timestamp_ms=row.last_timestamp_ms,
                    )
                )
        return {key: tuple(producers) for key, producers in found.items()}
