"""The changes that a request to alter configs makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.kafka.configs.config_changes import (
    APPEND,
    DELETE,
    SET,
    Operation,
    changed,
    check_form,
    refuse_broker_change,
    replaced,
)
from sequencer.topics.topic_config import KNOWN_CONFIGS, InvalidConfig, check_together

BROKER, TOPIC = 4, 2


def an_operation(name: str = "retention.ms", kind: int = SET, value: str | None = "5") -> Operation:
    return Operation(name=name, kind=kind, value=value)


def test_configs_to_set_and_to_delete_are_separate() -> None:
    change = changed({}, [an_operation(), an_operation("retention.bytes", DELETE, None)])

    assert (change.set, change.remove) == ({"retention.ms": "5"}, ["retention.bytes"])


def test_replacing_resets_all_other_configs() -> None:
    change = replaced({"retention.ms": "5"})

    assert change.set == {"retention.ms": "5"}
    assert set(change.remove) == KNOWN_CONFIGS.keys() - {"retention.ms"}


@pytest.mark.parametrize("given_value", ["delete", " delete,delete "])
def test_a_list_takes_each_item_once(given_value: str) -> None:
    change = changed({}, [an_operation("cleanup.policy", APPEND, given_value)])

    assert change.set == {"cleanup.policy": "delete"}


def test_a_changed_list_is_checked_as_a_whole() -> None:
    with pytest.raises(InvalidConfig, match="must be delete or compact"):
        changed({}, [an_operation("cleanup.policy", APPEND, "squash")])
    with pytest.raises(InvalidConfig, match="not LIST"):
        changed({}, [an_operation(kind=APPEND)])


def test_configs_that_contradict_each_other_are_refused_whatever_is_set_first() -> None:
    current = {"min.compaction.lag.ms": "5", "cleanup.policy": "compact"}
    lag, log = an_operation("max.compaction.lag.ms", SET, "4"), an_operation("tidelog.history", SET, "log")

    with pytest.raises(InvalidConfig, match="conflict topic config setting"):
        changed(current, [lag])
    with pytest.raises(InvalidConfig, match="Remote log storage only supports"):
        changed(current, [log])
    with pytest.raises(InvalidConfig, match="conflict topic config setting"):
        replaced({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})
    changed(current, [lag, an_operation("min.compaction.lag.ms", DELETE, None)])
    changed(current, [log, an_operation("cleanup.policy", DELETE, None)])
    replaced({"max.compaction.lag.ms": "4"})


def test_an_operation_that_kafka_does_not_know_is_refused() -> None:
    with pytest.raises(AdministrationRefused) as refused:
        changed({}, [an_operation(kind=4)])

    assert refused.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        (8, []),
        (TOPIC, [an_operation(), an_operation(kind=DELETE)]),
        (BROKER, [an_operation(value=None)]),
        (TOPIC, [an_operation(kind=APPEND, value=None)]),
    ],
)
def test_a_request_of_a_wrong_form_is_refused_whatever_is_set(kind: int, operations: list[Operation]) -> None:
    with pytest.raises(AdministrationRefused) as refused:
        check_form(kind, operations)

    assert refused.value.code is ErrorCode.invalid_request


def test_a_broker_accepts_only_deletions_which_change_nothing() -> None:
    check_form(BROKER, [an_operation(kind=DELETE, value=None)])
    refuse_broker_change([an_operation("anything", DELETE, None)], ["num.partitions"])
    refuse_broker_change([], [])

    with pytest.raises(AdministrationRefused) as unknown:
        refuse_broker_change([an_operation("anything")], ["num.partitions"])
    with pytest.raises(AdministrationRefused) as read_only:
        refuse_broker_change([an_operation("num.partitions")], ["num.partitions"])
    assert (unknown.value.code, read_only.value.code) == (ErrorCode.invalid_config, ErrorCode.invalid_request)


@given(
    st.lists(
        st.sampled_from(
            [("min.compaction.lag.ms", "6"), ("cleanup.policy", "compact")]
            + [(name, definition.default) for name, definition in KNOWN_CONFIGS.items()]
        ),
        max_size=3,
    ).map(dict),
    st.lists(
        st.builds(
            Operation,
            name=st.sampled_from([*KNOWN_CONFIGS, "no.such"]),
            kind=st.integers(-1, 5),
            value=st.one_of(st.none(), st.sampled_from(["delete", "5", "false", "", "compact"])),
        ),
        max_size=4,
    ),
)
def test_any_change_is_valid_or_refused(current: dict[str, str], operations: list[Operation]) -> None:
    try:
        change = changed(current, operations)
    except (AdministrationRefused, InvalidConfig):
        return
    for name, value in change.set.items():
        KNOWN_CONFIGS[name].check(value)
    kept = {name: value for name, value in current.items() if name not in change.remove}
    check_together({**kept, **change.set})
