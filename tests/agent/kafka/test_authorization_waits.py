"""Rights that change, and topics that appear, between a check and what it allowed."""

import asyncio
from datetime import timedelta

from kio.schema.errors import ErrorCode

from agent.security.acls.settings import AuthorizationSettings
from sequencer.client import Sequencer, SequencerSettings
from sequencer.security.acl import AclFilter, Operation, ResourceType
from tests.agent.kafka.apis.administrative_requests import create, delete, grow
from tests.agent.kafka.test_authorization import acl, allow, connected
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, a_metadata, running

NONE = ErrorCode.none
REFUSED = ErrorCode.topic_authorization_failed
UNKNOWN = ErrorCode.unknown_topic_or_partition
AUTHORIZATION = AuthorizationSettings(authorizer=True, super_users="User:root", acl_poll_s=0.1)
LONG = timedelta(seconds=30)
TOPIC = ResourceType.TOPIC


async def partitions_of(root: Wire, name: str) -> int:
    [topic] = (await root.ask(a_metadata(name, create=False))).topics
    return len(topic.partitions)


async def create_as_another_client(root: Wire, name: str) -> ErrorCode:
    """Clients are told apart by their client ids."""
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": []}
    asked = request(19, 7, topics=[topic], timeout=LONG, validate_only=False)
    return ErrorCode((await root.ask(asked, client_id="another")).topics[0].error_code)


async def test_who_may_only_describe_a_topic_deletes_none_that_is_created_meanwhile(
    database_url: str,
) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    async with running(
        database_url, authorization=AUTHORIZATION, topic_mutation_burst=2, topic_mutations_per_s=2
    ) as agent:
        root, mallory = await connected(agent, "root"), await connected(agent, "mallory")
        await allow(
            sequencer,
            (agent,),
            acl(Operation.DESCRIBE, TOPIC, "victim", "mallory"),
            acl(Operation.CREATE, TOPIC, "own", "mallory"),
        )
        overdrawn = await create(mallory, "own", num_partitions=6)
        assert ErrorCode(overdrawn.error_code) is NONE

        # Version 4 waits for its turn in the quota.
        sent = await mallory.send(request(20, 4, topic_names=("victim",), timeout=LONG))
        assert await create_as_another_client(root, "victim") is NONE
        deleted = (await mallory.receive(sent)).responses[0]

        assert ErrorCode(deleted.error_code) in (UNKNOWN, REFUSED)
        assert await partitions_of(root, "victim") == 1
        assert ErrorCode((await delete(mallory, 4, name="victim")).error_code) is REFUSED
        assert ErrorCode((await delete(mallory, 4, name="victims")).error_code) is REFUSED
    await sequencer.close()


async def test_a_right_that_is_withdrawn_while_the_quota_makes_a_request_wait_is_gone(
    database_url: str,
) -> None:
    sequencer = await Sequencer.open(database_url, SequencerSettings())
    async with running(
        database_url, authorization=AUTHORIZATION, topic_mutation_burst=2, topic_mutations_per_s=1
    ) as agent:
        root = await connected(agent, "root")
        first, second, third = [await connected(agent, "bob") for _ in range(3)]
        await allow(
            sequencer,
            (agent,),
            *(
                acl(operation, TOPIC, "bobs-", "bob", prefixed=True)
                for operation in (Operation.CREATE, Operation.DELETE, Operation.ALTER)
            ),
        )
        for name in ("bobs-old", "bobs-small"):
            assert await create_as_another_client(root, name) is NONE
        assert ErrorCode((await create(first, "bobs-first", num_partitions=6)).error_code) is NONE

        waiting = [
            asyncio.create_task(delete(first, 4, name="bobs-old")),
            asyncio.create_task(create(second, "bobs-new", version=5)),
            asyncio.create_task(grow(third, "bobs-small", 2, version=2)),
        ]
        await sequencer.acls.remove([AclFilter(principal="User:bob")], 100)
        await allow(sequencer, (agent,), acl(Operation.DESCRIBE, TOPIC, "bobs-", "bob", prefixed=True))
        codes = [ErrorCode((await one).error_code) for one in waiting]

        assert codes == [REFUSED, REFUSED, REFUSED]
        assert await partitions_of(root, "bobs-old") == 1
        assert await partitions_of(root, "bobs-new") == 0
        assert await partitions_of(root, "bobs-small") == 1
    await sequencer.close()
