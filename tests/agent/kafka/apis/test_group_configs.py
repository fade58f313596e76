"""Configs of consumer groups (resource type 32): described, altered, listed, and their effect on the group's
members.
"""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from agent.groups.group_configs import GROUP_CONFIGS
from tests.agent.kafka.apis.administrative_requests import alter, create, describe
from tests.agent.kafka.apis.groups_by_hand import consume
from tests.agent.read_path.wire import request
from tests.agent.running import Wire, until_answered

pytestmark = pytest.mark.asyncio(loop_scope="module")

SET, DELETE, APPEND = range(3)
GROUP = {"resource_type": 32}
HEARTBEAT, SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"


async def _shown(wire: Wire, group_id: str) -> dict[str, tuple[str, int]]:
    """Values and sources."""
    found = await describe(wire, group_id, kind=32)
    assert found.error_code is ErrorCode.none
    return {config.name: (config.value, config.config_source) for config in found.configs}


async def _listed(wire: Wire) -> list[str]:
    answer = await wire.ask(request(74, 1, resource_types=(32,)))
    return [found.resource_name for found in answer.config_resources]


async def test_a_group_has_the_agents_defaults_until_some_are_set(wire: Wire) -> None:
    before = await _shown(wire, "unheard-of")

    changed = await alter(wire, "unheard-of", (HEARTBEAT, SET, " 6000 "), resource=GROUP)
    after, listed = await _shown(wire, "unheard-of"), await _listed(wire)
    back = await alter(wire, "unheard-of", (HEARTBEAT, DELETE, None), resource=GROUP)

    assert before == {
        HEARTBEAT: ("5000", 5),
        SESSION: ("45000", 5),
        "streams.heartbeat.interval.ms": ("5000", 5),
        "streams.session.timeout.ms": ("45000", 5),
        "streams.num.standby.replicas": ("0", 5),
        "streams.initial.rebalance.delay.ms": ("3000", 5),
    }
    assert before.keys() == GROUP_CONFIGS.keys()
    assert (changed.error_code, after) == (ErrorCode.none, before | {HEARTBEAT: ("6000", 8)})
    assert "unheard-of" in listed
    assert back.error_code is ErrorCode.none
    assert await _shown(wire, "unheard-of") == before
    assert "unheard-of" not in await _listed(wire)


async def test_members_get_the_configs_of_their_group(wire: Wire) -> None:
    await create(wire, "orders")
    joined = await consume(wire, "paced", 0)
    assert joined.heartbeat_interval == timedelta(seconds=5)

    async def is_told(seconds: int) -> bool:
        told = await consume(wire, "paced", joined.member_epoch)
        return told.heartbeat_interval == timedelta(seconds=seconds)  # type: ignore[no-any-return]

    assert (await alter(wire, "paced", (HEARTBEAT, SET, "7000"), resource=GROUP)).error_code is ErrorCode.none
    await until_answered(lambda: is_told(7))
    assert (
        await alter(wire, "paced", (HEARTBEAT, DELETE, None), resource=GROUP)
    ).error_code is ErrorCode.none
    await until_answered(lambda: is_told(5))


async def test_a_group_that_is_loaded_later_uses_its_configs(wire: Wire) -> None:
    await create(wire, "orders")
    assert (
        await alter(wire, "paced-before", (HEARTBEAT, SET, "9000"), resource=GROUP)
    ).error_code is ErrorCode.none

    assert (await consume(wire, "paced-before", 0)).heartbeat_interval == timedelta(seconds=9)


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("group_id", "change", "code", "reason"),
    [
        ("g", (SESSION, SET, "44999"), ErrorCode.invalid_config, "greater than or equal to"),
        ("g", (SESSION, SET, "60001"), ErrorCode.invalid_config, "less than or equal to"),
        ("g", (HEARTBEAT, SET, "soon"), ErrorCode.invalid_config, "Not a number"),
        ("g", (HEARTBEAT, SET, None), ErrorCode.invalid_request, "Null value"),
        ("g", (HEARTBEAT, APPEND, "6000"), ErrorCode.invalid_config, "not LIST"),
        ("g", ("share.session.timeout.ms", SET, "45000"), ErrorCode.invalid_config, "share groups"),
        ("g", ("streams.num.standby.replicas", SET, "3"), ErrorCode.invalid_config, "less than or equal to"),
        ("g", ("streams.num.standby.replicas", SET, "-1"), ErrorCode.invalid_config, "between 0 and"),
        (
            "g",
            ("streams.session.timeout.ms", SET, "44999"),
            ErrorCode.invalid_config,
            "greater than or equal",
        ),
        ("g", ("no.such", SET, "1"), ErrorCode.invalid_config, "Known: consumer.heartbeat.interval.ms"),
        ("", (HEARTBEAT, SET, "6000"), ErrorCode.invalid_request, "must not be empty"),
        ("a\0b", (HEARTBEAT, SET, "6000"), ErrorCode.invalid_group_id, "NUL"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_with_a_reason(
    wire: Wire, group_id: str, change: Any, code: ErrorCode, reason: str, validate_only: bool
) -> None:
    answer = await alter(wire, group_id, change, resource=GROUP, validate_only=validate_only)

    assert answer.error_code is code
    assert reason in answer.error_message


async def test_validate_only_sets_nothing(wire: Wire) -> None:
    answer = await alter(wire, "validated", (HEARTBEAT, SET, "6000"), resource=GROUP, validate_only=True)

    assert answer.error_code is ErrorCode.none
    assert (await _shown(wire, "validated"))[HEARTBEAT] == ("5000", 5)


async def test_alter_configs_of_a_group_returns_to_the_default_what_it_does_not_name(wire: Wire) -> None:
    await alter(wire, "replaced", (HEARTBEAT, SET, "6000"), resource=GROUP)
    given = {
        "resource_type": 32,
        "resource_name": "replaced",
        "configs": [{"name": SESSION, "value": "50000"}],
    }

    answer = await wire.ask(request(33, 2, resources=[given], validate_only=False))

    assert answer.responses[0].error_code is ErrorCode.none
    shown = await _shown(wire, "replaced")
    assert (shown[HEARTBEAT], shown[SESSION]) == (("5000", 5), ("50000", 8))
