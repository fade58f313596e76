"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources by hand, code by code."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sequencer.topics.topic_config import KNOWN_CONFIGS
from tests.agent.kafka.apis.administrative_requests import alter, create, describe
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, a_metadata

pytestmark = pytest.mark.asyncio(loop_scope="module")

SET, DELETE, APPEND, SUBTRACT = range(4)


async def _me(wire: Wire) -> str:
    return str((await wire.ask(a_metadata(version=9))).brokers[0].node_id)


async def _values(wire: Wire, name: str) -> dict[str, str]:
    return {config.name: config.value for config in (await describe(wire, name)).configs}


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_configs_says_what_was_set_and_what_is_default(wire: Wire, version: int) -> None:
    name = f"described-{version}"
    await create(wire, name, configs=[{"name": "retention.ms", "value": "5"}])

    configs = {config.name: config for config in (await describe(wire, name, version=version)).configs}

    assert configs.keys() == KNOWN_CONFIGS.keys()
    retention, policy = configs["retention.ms"], configs["cleanup.policy"]
    assert (retention.value, retention.config_source) == ("5", 1)
    assert (policy.value, policy.config_source) == ("delete", 5)
    assert [(step.name, step.source) for step in retention.synonyms] == [
        ("retention.ms", 1),
        ("log.retention.ms", 5),
    ]
    assert not any(config.read_only or config.is_sensitive for config in configs.values())
    if version >= 3:
        assert (retention.config_type, policy.config_type) == (5, 7)
        assert all(config.documentation for config in configs.values())


async def test_a_resource_named_twice_is_described_once(wire: Wire) -> None:
    await create(wire, "once")
    resource = {"resource_type": 2, "resource_name": "once", "configuration_keys": None}

    answer = await wire.ask(
        request(32, 4, resources=[resource] * 3, include_synonyms=False, include_documentation=False)
    )

    assert [found.resource_name for found in answer.results] == ["once"]


async def test_synonyms_and_documentation_are_left_out_unless_asked_for(wire: Wire) -> None:
    await create(wire, "terse")
    resource = {"resource_type": 2, "resource_name": "terse", "configuration_keys": None}

    asked = request(32, 4, resources=[resource], include_synonyms=False, include_documentation=False)

    for config in (await wire.ask(asked)).results[0].configs:
        assert (config.synonyms, config.documentation) == ((), None)


async def test_a_broker_shows_its_settings_under_kafkas_names_and_no_secret(wire: Wire) -> None:
    me = await _me(wire)

    broker = await describe(wire, me, kind=4)

    configs = {config.name: config for config in broker.configs}
    assert broker.error_code is ErrorCode.none
    assert all(config.read_only for config in broker.configs)
    assert configs["node.id"].value == me
    assert configs["socket.request.max.bytes"].value == "104857600"
    assert configs["connections.max.idle.ms"].value == "600000"
    assert configs["log.retention.ms"].value == "604800000"
    assert configs["auto.create.topics.enable"].value == "true"
    assert (configs["tidelog.linger.ms"].config_type, configs["broker.rack"].value) == (6, "a")
    secret = configs["tidelog.database.url"]
    assert (secret.value, secret.is_sensitive, secret.config_type, secret.config_source) == (None, True, 9, 4)
    assert all(step.value is None for step in secret.synonyms)


async def test_describe_configs_of_one_key_and_of_resources_without_configs(wire: Wire) -> None:
    await create(wire, "described")

    one = await describe(wire, "described", keys=("retention.bytes",))
    cluster_wide = await describe(wire, "", kind=4)

    assert [config.name for config in one.configs] == ["retention.bytes"]
    assert (cluster_wide.error_code, cluster_wide.configs) == (ErrorCode.none, ())
    refused = {
        ("nowhere", 2): ErrorCode.unknown_topic_or_partition,
        ("no/name", 2): ErrorCode.invalid_topic_exception,
        ("98765", 4): ErrorCode.invalid_request,
        ("one", 4): ErrorCode.invalid_request,
        ("1", 8): ErrorCode.invalid_request,
        ("x", 16): ErrorCode.invalid_request,
        ("", 32): ErrorCode.invalid_request,
        ("a\0b", 32): ErrorCode.invalid_group_id,
        ("x", 77): ErrorCode.invalid_request,
    }
    for (name, kind), code in refused.items():
        answer = await describe(wire, name, kind=kind)
        assert (answer.error_code, answer.configs) == (code, ())
        assert answer.error_message


@pytest.mark.parametrize("version", range(2))
async def test_incremental_alter_configs(wire: Wire, version: int) -> None:
    name = f"altered-{version}"
    await create(wire, name, configs=[{"name": "retention.bytes", "value": "7"}])

    answers = [
        await alter(
            wire, name, ("retention.ms", SET, "9"), ("retention.bytes", DELETE, None), version=version
        ),
        await alter(wire, name, ("retention.ms", SET, "10"), version=version, validate_only=True),
        await alter(wire, name, ("cleanup.policy", APPEND, "delete"), version=version),
        await alter(wire, name, ("max.message.bytes", SET, " 77 "), version=version),
    ]

    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    configs = await _values(wire, name)
    assert (configs["retention.ms"], configs["retention.bytes"], configs["max.message.bytes"]) == (
        "9",
        "-1",
        "77",
    )


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (("retention.ms", APPEND, "1"), ErrorCode.invalid_config, "not LIST"),
        (("retention.ms", SUBTRACT, "1"), ErrorCode.invalid_config, "not LIST"),
        (("cleanup.policy", APPEND, "squash"), ErrorCode.invalid_config, "must be delete or compact"),
        (("cleanup.policy", SET, "delete,"), ErrorCode.invalid_config, "must be delete or compact"),
        (("max.compaction.lag.ms", SET, "4"), ErrorCode.invalid_config, "(5) > max.compaction.lag.ms (4)"),
        (("remote.storage.enable", SET, "true"), ErrorCode.invalid_config, "cleanup.policy=delete"),
        (("tidelog.history", SET, "log"), ErrorCode.invalid_config, "cleanup.policy=delete"),
        (("retention.ms", SET, "soon"), ErrorCode.invalid_config, "Not a number"),
        (("retention.ms", SET, None), ErrorCode.invalid_request, "Null value"),
        (("retention.ms", 9, "1"), ErrorCode.invalid_request, "Unknown operations type 9"),
        (("no.such", SET, "1"), ErrorCode.invalid_config, "Known: cleanup.policy"),
        (("compression.type", SET, "brotli"), ErrorCode.invalid_config, "uncompressed or zstd"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_with_a_reason(
    wire: Wire, change: tuple[str, int, str | None], code: ErrorCode, reason: str, validate_only: bool
) -> None:
    configs = {"cleanup.policy": "delete,compact", "min.compaction.lag.ms": "5"}
    await create(
        wire, "unaltered", configs=[{"name": name, "value": value} for name, value in configs.items()]
    )

    answer = await alter(wire, "unaltered", change, validate_only=validate_only)

    assert answer.error_code is code
    assert reason in answer.error_message


async def test_a_cleanup_policy_is_set_appended_to_and_emptied(wire: Wire) -> None:
    name, seen = "policies", []
    await create(wire, name, configs=[{"name": "cleanup.policy", "value": "compact"}])

    for kind, value in ((APPEND, "delete"), (SUBTRACT, "compact"), (SUBTRACT, "delete"), (SET, " compact ")):
        answer = await alter(wire, name, ("cleanup.policy", kind, value))
        assert answer.error_code is ErrorCode.none, answer
        seen.append((await _values(wire, name))["cleanup.policy"])

    assert seen == ["compact,delete", "delete", "", "compact"]


async def test_a_name_given_twice_is_refused(wire: Wire) -> None:
    await create(wire, "altered-twice")
    change = {"name": "retention.ms", "config_operation": SET, "value": "1"}
    resource = {"resource_type": 2, "resource_name": "altered-twice", "configs": [change]}

    keys = await alter(wire, "altered-twice", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    resources = await wire.ask(request(44, 1, resources=[resource, resource], validate_only=False))

    assert (keys.error_code, "duplicate" in keys.error_message) == (ErrorCode.invalid_request, True)
    assert {found.error_code for found in resources.responses} == {ErrorCode.invalid_request}
    assert (await _values(wire, "altered-twice"))["retention.ms"] == "604800000"


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_returns_to_the_default_what_it_does_not_name(wire: Wire, version: int) -> None:
    name = f"replaced-{version}"
    await create(wire, name, configs=[{"name": "retention.bytes", "value": "7"}])

    async def replace(*configs: tuple[str, str | None], validate_only: bool = False, **resource: Any) -> Any:
        given = {"resource_type": 2, "resource_name": name, **resource}
        given["configs"] = [{"name": key, "value": value} for key, value in configs]
        return (
            await wire.ask(request(33, version, resources=[given], validate_only=validate_only))
        ).responses[0]

    answers = [
        await replace(("retention.ms", "9")),
        await replace(("retention.ms", "10"), validate_only=True),
        await replace(("retention.ms", "never")),
        await replace(("retention.ms", None)),
        await replace(("retention.ms", "1"), ("retention.ms", "2")),
        await replace(resource_name="nowhere"),
        await replace(resource_type=16),
        await replace(("num.partitions", "3"), resource_type=4, resource_name=""),
    ]

    assert [answer.error_code for answer in answers] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_config,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    configs = await _values(wire, name)
    assert (configs["retention.ms"], configs["retention.bytes"]) == ("9", "-1")


async def test_a_brokers_configs_are_not_changed_while_it_runs(wire: Wire) -> None:
    me, broker = await _me(wire), {"resource_type": 4}

    read_only = await alter(wire, me, ("num.partitions", SET, "3"), resource=broker)
    unknown = await alter(wire, "", ("no.such.setting", SET, "3"), resource=broker)
    another = await alter(wire, "98765", ("num.partitions", SET, "3"), resource=broker)
    nothing = await alter(wire, me, resource=broker)
    deleted = await alter(wire, me, ("leader.replication.throttled.rate", DELETE, None), resource=broker)

    assert (read_only.error_code, "num.partitions" in read_only.error_message) == (
        ErrorCode.invalid_request,
        True,
    )
    assert (unknown.error_code, "Known: " in unknown.error_message) == (ErrorCode.invalid_config, True)
    assert another.error_code is ErrorCode.invalid_request
    assert nothing.error_code is deleted.error_code is ErrorCode.none


async def test_unknown_topics_and_types_are_refused_one_by_one(wire: Wire) -> None:
    change = [{"name": "retention.ms", "config_operation": SET, "value": "1"}]
    await create(wire, "altered-beside")
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": change}
        for kind, name in ((2, "nowhere"), (8, "1"), (16, "x"), (64, "g"), (2, "altered-beside"))
    ]

    answer = await wire.ask(request(44, 1, resources=resources, validate_only=False))

    assert [found.error_code for found in answer.responses] == [
        ErrorCode.unknown_topic_or_partition,
        *[ErrorCode.invalid_request] * 3,
        ErrorCode.none,
    ]
    assert (await _values(wire, "altered-beside"))["retention.ms"] == "1"


async def test_list_config_resources(wire: Wire) -> None:
    await create(wire, "listed")
    me = await _me(wire)

    async def listed(version: int, *types: int) -> Any:
        return await wire.ask(request(74, version, resource_types=types))

    everything = await listed(1)
    found = {(resource.resource_type, resource.resource_name) for resource in everything.config_resources}
    assert {(2, "listed"), (4, me)} <= found
    assert {kind for kind, _ in found} == {2, 4}
    assert [resource.resource_name for resource in (await listed(1, 4)).config_resources] == [me]
    assert (await listed(1, 16, 32)).config_resources == ()
    assert (await listed(0)).config_resources == ()
    assert (await listed(1, 5)).error_code is ErrorCode.unsupported_version
