"""What a tenant lists and creates costs what it has, and not what others have."""

from collections.abc import Mapping

from sequencer.client import Sequencer
from sequencer.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from sequencer.security.acls import SQL as ACLS_SQL
from sequencer.security.acls import _filters
from sequencer.security.credentials import SQL as CREDENTIALS_SQL
from sequencer.security.credentials import CredentialKey, ScramMechanism
from sequencer.tenants.tenant_limits import TenantLimits
from sequencer.tenants.tenants import SQL as TENANTS_SQL
from sequencer.topics.topics import SQL as TOPICS_SQL
from storage.identifiers import NodeId
from tests.agent.security.logins.users import keys_for
from tests.sequencer.plans import generic_plan, pages_touched

OTHERS = 3_000
STATEMENTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "topics counted": (TENANTS_SQL["numbers_of_tenant"], {"prefix": "acme~", "behind": "acme\x7f"}),
    "topics listed": (TOPICS_SQL["list_topics_of_tenants"], {"tenants": ["acme"]}),
    "colliding names": (TOPICS_SQL["colliding_topic"], {"name": "acme~a.b"}),
    "users": (
        CREDENTIALS_SQL["list_within"],
        {"user": "acme~", "mechanism": "", "behind": "acme\x7f", "cap": 1_000},
    ),
}


async def test_a_tenants_lists_read_no_rows_of_others(sequencer: Sequencer) -> None:
    await sequencer.tenants.create("acme", [], TenantLimits())
    small = await _pages(sequencer)
    await _fill(sequencer)
    large = await _pages(sequencer)

    for name, pages in large.items():
        # An index is a level deeper. The names of 3,000 others would be 20 pages at least.
        assert pages <= small[name] + 5, (name, small, large)


async def _pages(sequencer: Sequencer) -> dict[str, int]:
    async with sequencer.database.connection() as connection:
        return {
            name: pages_touched(await generic_plan(connection, statement, parameters))
            for name, (statement, parameters) in STATEMENTS.items()
        }


async def test_acls_of_a_tenant_are_found_in_its_range_of_the_index(sequencer: Sequencer) -> None:
    await _fill(sequencer)
    await sequencer.tenants.create("acme", [], TenantLimits())
    names = ["acme~a", "acme~" + "b" * 900, "acm~a", "acme2~a"]
    await sequencer.acls.add([_acl(name) for name in names], 10_000)
    asked = AclFilter(within="acme~")
    async with sequencer.database.connection() as connection:
        await connection.execute("ANALYZE acls")
        cursor = await connection.execute(
            "EXPLAIN (ANALYZE, COSTS false, TIMING false) " + ACLS_SQL["matching_acls"],
            {**_filters([asked]), "after": b"", "cap": 100},
        )
        plan = "\n".join(row[0] for row in await cursor.fetchall())

    assert {one.name for one in await sequencer.acls.matching(asked, 10)} == set(names[:2])
    assert "acls_by_tenant" in plan
    assert "(never executed)" in plan.split("acls_by_tenant", 1)[1]  # the look through all ACLs


async def test_lists_within_a_tenant_have_all_of_it_and_nothing_else(sequencer: Sequencer) -> None:
    keys = keys_for(ScramMechanism.SHA_256, "secret")
    for name in ("acm", "acme", "acme-2", "acme2"):
        await sequencer.tenants.create(name, [], TenantLimits())
        await sequencer.topics.create(f"{name}~a", 1, {})
        await sequencer.group_configs.alter(f"{name}~a", {"consumer.session.timeout.ms": "50000"})
        await sequencer.groups.claim(f"{name}~a", NodeId(1), create=True)
        for mechanism in ScramMechanism:
            await sequencer.user_credentials.alter([(CredentialKey(f"{name}~a", mechanism), keys)])

    assert [topic.name for topic in (await sequencer.topics.of_tenants(["acme"]))["acme"]] == ["acme~a"]
    assert list(await sequencer.group_configs.list("acme~")) == ["acme~a"]
    assert [one.group_id for one in await sequencer.groups.list(within="acme~")] == ["acme~a"]
    users = await sequencer.user_credentials.list("acme~")
    assert [(one.key.user, one.key.mechanism) for one in users] == [
        ("acme~a", mechanism) for mechanism in sorted(ScramMechanism)
    ]


async def test_a_list_of_many_pages_within_a_tenant_is_complete(sequencer: Sequencer) -> None:
    for table, columns, values in (
        ("groups", "group_id, coordinator", "t || '~' || n, 1"),
        ("group_configs", "group_id, config", """t || '~' || n, '{"a": "b"}'"""),
        (
            "user_credentials",
            "user_name, mechanism, change, salt, iterations, stored_key, server_key",
            "t || '~' || n, 'SCRAM-SHA-256', n, 'a', 4096, 'a', 'a'",
        ),
    ):
        await sequencer.database.run(
            f"INSERT INTO {table} ({columns})"
            f" SELECT {values} FROM generate_series(1, 2500) AS n, unnest(ARRAY['acme', 'beta']) AS t"
        )

    for found in (
        [one.group_id for one in await sequencer.groups.list(within="acme~")],
        list(await sequencer.group_configs.list("acme~")),
        [one.key.user for one in await sequencer.user_credentials.list("acme~")],
    ):
        assert len(set(found)) == len(found) == 2_500
        assert all(name.startswith("acme~") for name in found)


async def _fill(sequencer: Sequencer) -> None:
    """Thousands of topics, users and ACLs of another tenant."""
    for statement in (
        "INSERT INTO topics (topic_id, name, partition_count)"
        " SELECT gen_random_uuid(), 'beta~t' || n, 1 FROM generate_series(1, %(others)s) AS n",
        "INSERT INTO user_credentials"
        " (user_name, mechanism, change, salt, iterations, stored_key, server_key)"
        " SELECT 'beta~u' || n, 'SCRAM-SHA-256', n, 'a', 4096, 'a', 'a'"
        " FROM generate_series(1, %(others)s) AS n",
        "INSERT INTO acls"
        " (acl_key, resource_type, pattern_type, name, principal, host, operation, permission, version)"
        " SELECT sha256(n::text::bytea), 2, 3, 'beta~t' || n, 'User:beta~x', '*', 3, 3, 1"
        " FROM generate_series(1, %(others)s) AS n",
    ):
        await sequencer.database.run(statement, others=OTHERS)
    async with sequencer.database.connection() as connection:
        for table in ("topics", "user_credentials", "acls"):
            await connection.execute(f"ANALYZE {table}".encode())


def _acl(name: str) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name=name,
        principal="User:x",
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )
