"""A client of no tenant that may describe and alter the whole cluster, but is no operator, neither sees nor
changes what is a tenant's.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.request import UserName as DescribedUser
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from sequencer.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.running import Running, Wire, a_metadata, until_answered
from tests.agent.security.logins.users import add_user
from tests.agent.tenants.two_tenants import PASSWORD, connected, opened, tenants_agent

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ANY = i8(1)
_LITERAL, _ALLOW, _TOPIC, _READ = i8(3), i8(3), i8(2), i8(3)


def an_acl(resource_type: ResourceType, name: str, principal: str, operation: Operation) -> Acl:
    return Acl(
        resource_type=resource_type,
        pattern_type=PatternType.LITERAL,
        name=name,
        principal=principal,
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(module_database_url: str) -> AsyncIterator[Running]:
    """`monitor` may do everything with the cluster and is no super user."""
    async with tenants_agent(module_database_url) as started:
        for user in ("monitor", "ann"):
            await add_user(module_database_url, user, PASSWORD)
        async with opened(module_database_url) as sequencer:
            await sequencer.acls.add(
                [
                    an_acl(ResourceType.CLUSTER, CLUSTER_NAME, "User:monitor", Operation.ALL),
                    an_acl(ResourceType.TOPIC, "acme~orders", "User:acme~bob", Operation.READ),
                ],
                100,
            )
            await sequencer.topics.create("acme~orders", 1, {})
            await sequencer.topics.create("free", 1, {})
        for tenant, user, group, topic in (
            ("acme", "alice", "readers", "orders"),
            (None, "root", "plain", "free"),
        ):
            wire = await connected(started.app.kafka_port, tenant, user)
            await wire.ask(a_metadata(topic))
            await wire.ask(a_commit(group, topic))
            wire.close()

        async def decides() -> bool:
            wire = await monitor_of(started)
            answer = await wire.ask(all_acls())
            wire.close()
            return bool(answer.resources)

        await until_answered(decides)
        yield started


def a_commit(group: str, topic: str) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        group_instance_id=None,
        topics=(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=i32(0),
                        committed_offset=i64(0),
                        committed_leader_epoch=i32(-1),
                        committed_metadata="",
                    ),
                ),
            ),
        ),
    )


def all_acls() -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )


async def monitor_of(agent: Running) -> Wire:
    return await connected(agent.app.kafka_port, None, "monitor")


async def test_lists_of_the_cluster_leave_tenants_out(agent: Running) -> None:
    seen = {}
    for user in ("monitor", "root"):
        wire = await connected(agent.app.kafka_port, None, user)
        groups = await wire.ask(ListGroupsRequest(states_filter=()))
        users = await wire.ask(DescribeUserScramCredentialsRequest(users=None))
        acls = await wire.ask(all_acls())
        sizes = await wire.ask(DescribeLogDirsRequest(topics=None))
        configs = await wire.ask(ListConfigResourcesRequest(resource_types=(_TOPIC,)))
        wire.close()
        seen[user] = (
            {one.group_id for one in groups.groups},
            {one.user for one in users.results},
            {one.resource_name for one in acls.resources},
            {one.name for one in sizes.results[0].topics},
            {one.resource_name for one in configs.config_resources},
        )

    assert seen["monitor"] == ({"plain"}, {"ann", "monitor", "root"}, {CLUSTER_NAME}, {"free"}, {"free"})
    assert all(any(name.startswith("acme~") for name in names) for names in seen["root"])


async def test_a_tenants_user_looks_like_one_that_does_not_exist(agent: Running) -> None:
    wire = await monitor_of(agent)
    answer = await wire.ask(
        DescribeUserScramCredentialsRequest(users=(DescribedUser(name="acme~alice"), DescribedUser(name="x")))
    )

    assert [one.error_code.name for one in answer.results] == ["resource_not_found"] * 2


async def test_a_tenants_users_and_acls_are_not_changed(agent: Running, module_database_url: str) -> None:
    wire = await monitor_of(agent)
    deleted = await wire.ask(
        AlterUserScramCredentialsRequest(
            deletions=tuple(
                ScramCredentialDeletion(name=user, mechanism=i8(1)) for user in ("acme~alice", "ann")
            ),
            upsertions=(),
        )
    )
    created = await wire.ask(
        CreateAclsRequest(
            creations=tuple(
                AclCreation(
                    resource_type=_TOPIC,
                    resource_name=name,
                    resource_pattern_type=_LITERAL,
                    principal="User:acme~bob",
                    host="*",
                    operation=_READ,
                    permission_type=_ALLOW,
                )
                for name in ("acme~secret", "free")
            )
        )
    )
    removed = await wire.ask(
        DeleteAclsRequest(
            filters=(
                DeleteAclsFilter(
                    resource_type_filter=_TOPIC,
                    resource_name_filter=None,
                    pattern_type_filter=_ANY,
                    principal_filter=None,
                    host_filter=None,
                    operation=_ANY,
                    permission_type=_ANY,
                ),
            )
        )
    )

    codes = {one.user: one.error_code.name for one in deleted.results}
    assert codes == {"acme~alice": "cluster_authorization_failed", "ann": "none"}
    assert [one.error_code.name for one in created.results] == ["cluster_authorization_failed", "none"]
    assert [one.resource_name for one in removed.filter_results[0].matching_acls] == ["free"]
    async with opened(module_database_url) as sequencer:
        assert await sequencer.user_credentials.of(["acme~alice"])
