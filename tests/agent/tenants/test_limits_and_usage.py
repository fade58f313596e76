"""Limits of tenants, and their bill."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from agent.security.sasl.settings import SaslSettings
from agent.tenants.settings import TenantSettings
from sequencer.commits.producers import ProducerIdentity
from sequencer.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from sequencer.security.credentials import CredentialKey, ScramMechanism
from sequencer.tenants.tenant_limits import TenantLimitReached, TenantLimits
from sequencer.tenants.tenants import TenantExists, TenantNotEmpty, UnknownTenant, Used
from sequencer.topics.topic_config import TopicConfig
from storage.identifiers import NodeId
from tests.agent.kafka.apis.administrative_requests import create
from tests.agent.read_path.wire import request
from tests.agent.running import running, until_answered
from tests.agent.security.logins.users import add_user, keys_for, produced, remove_user
from tests.agent.tenants.two_tenants import connected, login_of, make_tenants, opened, tenants_agent

pytestmark = pytest.mark.asyncio

KEYS = keys_for(ScramMechanism.SHA_256, "secret")


async def test_a_topic_above_the_limits_is_refused(database_url: str) -> None:
    limits = TenantLimits(topics=2, partitions=5, retention_ms=1_000)
    async with opened(database_url) as sequencer:
        await sequencer.tenants.create("acme", [], limits)
        first = await sequencer.topics.create("acme~a", 3, {})

        assert first.config == {"retention.ms": "1000"}
        for name, partitions, config in (
            ("acme~b", 3, {}),
            ("acme~b", 1, {"retention.ms": "1001"}),
            ("acme~b", 1, {"retention.ms": "-1"}),
        ):
            with pytest.raises(TenantLimitReached):
                await sequencer.topics.create(name, partitions, config)
        await sequencer.topics.create("acme~b", 2, {"retention.ms": "10"})
        with pytest.raises(TenantLimitReached):
            await sequencer.topics.create("acme~c", 1, {})
        with pytest.raises(TenantLimitReached):
            await sequencer.topics.add_partitions("acme~a", 4)
        with pytest.raises(TenantLimitReached):
            await sequencer.topics.alter_config("acme~b", {"retention.ms": "5000"})
        altered = await sequencer.topics.alter_config("acme~b", {}, ["retention.ms"])
        assert altered.config == {"retention.ms": "1000"}
        await sequencer.topics.create("free", 1, {"retention.ms": "-1"})


@pytest.mark.parametrize("policy", ["compact", "", " compact "])
async def test_no_policy_without_delete_passes_a_limit_of_retention(database_url: str, policy: str) -> None:
    """Records would stay for ever, whatever `retention.ms` says."""
    async with opened(database_url) as sequencer:
        for limit in ("retention_ms", "retention_bytes"):
            name, limits = limit.replace("_", "-"), TenantLimits(**{limit: 1_000})
            await sequencer.tenants.create(name, [], limits)
            with pytest.raises(TenantLimitReached, match="needs delete"):
                await sequencer.topics.create(f"{name}~a", 1, {"cleanup.policy": policy})
            await sequencer.topics.create(f"{name}~a", 1, {"cleanup.policy": "compact, delete"})
            with pytest.raises(TenantLimitReached, match="needs delete"):
                await sequencer.topics.alter_config(f"{name}~a", {"cleanup.policy": policy})
        await sequencer.tenants.create("free", [], TenantLimits(topics=1))
        await sequencer.topics.create("free~a", 1, {"cleanup.policy": policy})


@pytest.mark.parametrize("name", ["retention.ms", "tidelog.history.retention.ms"])
async def test_unlimited_retention_passes_no_limit(database_url: str, name: str) -> None:
    async with opened(database_url) as sequencer:
        await sequencer.tenants.create("acme", [], TenantLimits(retention_ms=1_000))
        with pytest.raises(TenantLimitReached, match=name):
            await sequencer.topics.create("acme~a", 1, {name: "-1"})
        # What stays in the log is never more than retention.ms.
        made = await sequencer.topics.create("acme~a", 1, {"local.retention.ms": "-1"})
        assert TopicConfig.of(made.config).local_retention_ms == 1_000
        with pytest.raises(TenantLimitReached, match=name):
            await sequencer.topics.alter_config("acme~a", {name: "-1"})


async def test_two_agents_at_once_never_pass_a_limit(database_url: str) -> None:
    limits = TenantLimits(topics=3, partitions=10, users=3, acls=3)
    async with opened(database_url) as one, opened(database_url) as other:
        await one.tenants.create("acme", [], limits)
        both = (one, other)

        async def outcome(work: Awaitable[object]) -> bool:
            try:
                await work
            except TenantLimitReached:
                return False
            return True

        created = await asyncio.gather(
            *(outcome(both[number % 2].topics.create(f"acme~t{number}", 2, {})) for number in range(8))
        )
        grown = await asyncio.gather(
            *(
                outcome(both[number % 2].topics.add_partitions(topic.name, 5))
                for number, topic in enumerate(await one.topics.list())
            )
        )
        users = await asyncio.gather(
            *(
                outcome(both[number % 2].user_credentials.alter([(a_key(f"acme~u{number}"), KEYS)]))
                for number in range(8)
            )
        )
        acls = await asyncio.gather(
            *(outcome(both[number % 2].acls.add([an_acl(f"acme~t{number}")], 100)) for number in range(8))
        )

    assert (sum(created), sum(grown), sum(users), sum(acls)) == (3, 1, 3, 3)


async def test_a_tenant_with_all_its_users_and_acls_takes_none_from_others(database_url: str) -> None:
    async with opened(database_url) as sequencer:
        for name in ("acme", "acme2", "acm"):
            await sequencer.tenants.create(name, [], TenantLimits(users=1, acls=1))
        users, acls = sequencer.user_credentials, sequencer.acls
        await users.alter([(a_key("acme~ann"), KEYS), (a_key("acme~ann", ScramMechanism.SHA_512), KEYS)])
        await acls.add([an_acl("acme~a")], 5)
        with pytest.raises(TenantLimitReached):
            await users.alter([(a_key("acme~ben"), KEYS), (a_key("root"), KEYS)])
        with pytest.raises(TenantLimitReached):
            await acls.add([an_acl("acme~b"), an_acl("free")], 5)
        assert not await users.of(["root"])  # all or nothing

        await users.alter([(a_key("acme~ann"), KEYS)])  # a new password
        await acls.add([an_acl("acme~a")], 5)
        for name in ("acme2~", "acm~", ""):
            await users.alter([(a_key(f"{name}ann"), KEYS)])
            await acls.add([an_acl(f"{name}a")], 5)
        await users.alter([], [a_key("acme~ann"), a_key("acme~ann", ScramMechanism.SHA_512)])
        await users.alter([(a_key("acme~ben"), KEYS)])
        await acls.remove([AclFilter(within="acme~")], 10)
        await acls.add([an_acl("acme~" + "b" * 1_000)], 5)


async def test_a_tenant_with_all_its_groups_makes_no_more_and_takes_none_from_others(
    database_url: str,
) -> None:
    async with opened(database_url) as sequencer:
        for name in ("acme", "acme2", "acm"):
            await sequencer.tenants.create(name, [], TenantLimits(groups=2))
        groups, configs, agent = sequencer.groups, sequencer.group_configs, NodeId(1)
        config = {"consumer.session.timeout.ms": "45000"}
        for name in ("acme~a", "acme~b"):
            assert await groups.claim(name, agent, create=True) is not None
            await configs.alter(name, config)

        with pytest.raises(TenantLimitReached):
            await groups.claim("acme~c", agent, create=True)
        with pytest.raises(TenantLimitReached):
            await configs.alter("acme~c", config)

        assert await groups.claim("acme~c", agent, create=False) is None
        first = await groups.claim("acme~a", agent, create=True)  # it is there
        await configs.alter("acme~a", {}, list(config))
        with pytest.raises(TenantLimitReached):
            await configs.alter("acme~c", config)  # the row of the other one stays
        await configs.alter("acme~a", config)
        await configs.alter("acme~c", {}, list(config))  # leaves no row
        for name in ("acme2~c", "acm~c", "c", "acme-c", "acme\x7fc"):
            assert await groups.claim(name, agent, create=True) is not None
            await configs.alter(name, config)
        assert first is not None
        await groups.delete("acme~a", first.coordinator_epoch)
        assert await groups.claim("acme~c", agent, create=True) is not None
        await sequencer.tenants.change("acme", admins=None, limits=TenantLimits(groups=3))
        await configs.alter("acme~c", config)
        assert await groups.claim("acme~d", agent, create=True) is not None


async def test_clients_of_a_tenant_with_all_its_groups_are_refused(database_url: str) -> None:
    await make_tenants(database_url, "acme", limits=TenantLimits(groups=1))
    async with running(database_url, sasl_settings=SaslSettings(sasl_mechanisms="PLAIN")) as agent:
        wire = await connected(agent.app.kafka_port, "acme")
        await create(wire, "orders")

        async def code(group_id: str) -> ErrorCode:
            offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
            topics = [{"name": "orders", "partitions": [{**offset, "committed_metadata": ""}]}]
            of_no_member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
            asked = request(8, 8, group_id=group_id, topics=topics, **of_no_member)
            return ErrorCode((await wire.ask(asked)).topics[0].partitions[0].error_code)

        async def config_code(group_id: str, *, validate_only: bool = False) -> ErrorCode:
            setting = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}
            changed = {"resource_type": 32, "resource_name": group_id, "configs": [setting]}
            asked = request(44, 1, resources=[changed], validate_only=validate_only)
            return ErrorCode((await wire.ask(asked)).responses[0].error_code)

        refused = ErrorCode.policy_violation
        assert [await code(name) for name in ("a", "b", "a")] == [ErrorCode.none, refused, ErrorCode.none]
        assert [await config_code(name) for name in ("x", "y", "x")] == [
            ErrorCode.none,
            refused,
            ErrorCode.none,
        ]
        assert await config_code("y", validate_only=True) is refused
        wire.close()


async def test_a_tenant_with_all_its_transactional_ids_takes_none_from_others(database_url: str) -> None:
    async with opened(database_url) as sequencer:
        for name in ("acme", "acme2", "acm"):
            await sequencer.tenants.create(name, [], TenantLimits(transactional_ids=2))
        transactions = sequencer.transactions
        for name in ("acme~a", "acme~b", "acme~a", "acme2~c", "acm~c", "c", "acme-c", "acme\x7fc"):
            assert isinstance(await transactions.initialize(name, 60_000), ProducerIdentity)

        with pytest.raises(TenantLimitReached):
            await transactions.initialize("acme~c", 60_000)

        await transactions.forget(0.0, 100)
        assert isinstance(await transactions.initialize("acme~c", 60_000), ProducerIdentity)
        assert isinstance(await transactions.initialize("acme~d", 60_000), ProducerIdentity)
        await sequencer.tenants.change("acme", admins=None, limits=TenantLimits(transactional_ids=3))
        assert isinstance(await transactions.initialize("acme~e", 60_000), ProducerIdentity)


async def test_a_producer_of_a_tenant_with_all_its_transactional_ids_is_refused(database_url: str) -> None:
    await make_tenants(database_url, "acme", limits=TenantLimits(transactional_ids=1))
    async with running(database_url, sasl_settings=SaslSettings(sasl_mechanisms="PLAIN")) as agent:
        wire = await connected(agent.app.kafka_port, "acme")

        async def code(transactional_id: str | None) -> ErrorCode:
            new = {"producer_id": -1, "producer_epoch": -1, "transaction_timeout": timedelta(minutes=1)}
            asked = request(22, 5, transactional_id=transactional_id, **new)
            return ErrorCode((await wire.ask(asked)).error_code)

        refused, fine = ErrorCode.policy_violation, ErrorCode.none
        assert [await code(name) for name in ("a", "b", "a", None)] == [fine, refused, fine, fine]
        wire.close()


def a_key(user: str, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> CredentialKey:
    return CredentialKey(user, mechanism)


def an_acl(name: str) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name=name,
        principal="User:x",
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )


async def test_a_tenant_is_made_from_nothing_and_deleted_with_nothing_left(database_url: str) -> None:
    await add_user(database_url, "acme~ann", "secret")
    async with opened(database_url) as sequencer:
        with pytest.raises(TenantNotEmpty, match="1 users"):
            await sequencer.tenants.create("acme", [], TenantLimits())
        await remove_user(database_url, "acme~ann")
        await sequencer.tenants.create("acme", [], TenantLimits())
        with pytest.raises(TenantExists):
            await sequencer.tenants.create("acme", [], TenantLimits())
        await sequencer.topics.create("acme~a", 1, {})
        with pytest.raises(TenantNotEmpty, match="1 topics"):
            await sequencer.tenants.delete("acme")
        await sequencer.topics.delete("acme~a")
        await sequencer.tenants.delete("acme")
        with pytest.raises(UnknownTenant):
            await sequencer.tenants.delete("acme")
        again = await sequencer.tenants.create("acme", ["ann"], TenantLimits())
        assert again.admins == ("ann",)


@pytest.mark.parametrize("kind", ["quotas", "group configs"])
async def test_a_new_tenant_inherits_no_quotas_and_no_configs_of_groups(database_url: str, kind: str) -> None:
    """They would hold for the users and groups of the next tenant of this name."""
    async with opened(database_url) as sequencer:
        await sequencer.tenants.create("acme", [], TenantLimits())

        async def set_to(value: str | None) -> None:
            if kind == "quotas":
                entity = frozenset({("user", "acme~ann"), ("client-id", None)})
                quota = None if value is None else float(value)
                await sequencer.client_quotas.alter({entity: {"request_percentage": quota}}, 10)
            elif value is None:
                await sequencer.group_configs.alter("acme~g", {}, ["consumer.session.timeout.ms"])
            else:
                await sequencer.group_configs.alter("acme~g", {"consumer.session.timeout.ms": value})

        await set_to("50000")
        with pytest.raises(TenantNotEmpty, match=f"1 {kind}"):
            await sequencer.tenants.delete("acme")
        await set_to(None)
        await sequencer.tenants.delete("acme")
        [row] = await sequencer.database.read("SELECT count(*) AS rows FROM group_configs")
        await sequencer.group_configs.alter("acme~never", {}, ["consumer.session.timeout.ms"])
        [later] = await sequencer.database.read("SELECT count(*) AS rows FROM group_configs")
        assert later.rows == row.rows


async def test_a_repeated_report_counts_once(database_url: str) -> None:
    async with opened(database_url) as sequencer:
        [row] = await sequencer.database.read("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
        reporter, used = uuid4(), {(row.today, "acme"): Used(bytes_in=1, bytes_out=2, requests=3)}
        for number in (1, 1, 2, 1):
            await sequencer.tenants.add_usage(reporter, number, used)

        [day] = await sequencer.tenants.usage(1)

    assert day.used == Used(bytes_in=2, bytes_out=4, requests=6)


async def test_the_bill_has_what_clients_sent_got_and_stored(database_url: str) -> None:
    settings = TenantSettings(tenants_poll_s=0.1, tenant_usage_report_s=0.1, tenant_usage_measure_s=0.1)
    async with tenants_agent(database_url, tenant_settings=settings) as agent:
        await produced(agent.bootstrap, "orders", login_of("acme"), value="x" * 10_000)
        async with opened(database_url) as sequencer:

            async def is_billed() -> bool:
                found = {one.tenant: one for one in await sequencer.tenants.usage(1)}
                acme = found.get("acme")
                if acme is None or acme.used.bytes_in <= 10_000 or acme.used.requests < 3:
                    return False
                return (acme.bytes_stored or 0) > 10_000

            await until_answered(is_billed)
            found = {one.tenant: one for one in await sequencer.tenants.usage(1)}

    assert found["acme"].used.bytes_out > 0
    assert found["beta"].used == Used()
