"""What a request to alter configs comes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused
from agent.kafka.configs.config_changes import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    Operation,
    changed,
    check_form,
    refuse_broker_change,
    replaced,
)
from sequencer.topics.topic_config import KNOWN_CONFIGS, InvalidConfig

BROKER, TOPIC = 4, 2


def an_operation(name: str = "retention.ms", kind: int = SET, value: str | None = "5") -> Operation:
    return Operation(name=name, kind=kind, value=value)


def test_what_is_set_and_what_is_deleted_is_kept_apart() -> None:
    change = changed({}, [an_operation(), an_operation("retention.bytes", DELETE, None)])

    assert (change.set, change.remove) == ({"retention.ms": "5"}, ["retention.bytes"])


def test_replacing_returns_everything_else_to_its_default() -> None:
    change = replaced({"retention.ms": "5"})

    assert change.set == {"retention.ms": "5"}
    assert set(change.remove) == KNOWN_CONFIGS.keys() - {"retention.ms"}


@pytest.mark.parametrize("given_value", ["delete", " delete,delete "])
def test_a_list_takes_each_item_once(given_value: str) -> None:
    change = changed({}, [an_operation("cleanup.policy", APPEND, given_value)])

    assert change.set == {"cleanup.policy": "delete"}


def test_what_a_list_comes_to_is_checked_as_a_whole() -> None:
    with pytest.raises(InvalidConfig, match="compact"):
        changed({}, [an_operation("cleanup.policy", APPEND, "compact")])
    with pytest.raises(InvalidConfig, match="must be delete"):
        changed({"cleanup.policy": "delete"}, [an_operation("cleanup.policy", SUBTRACT, "delete")])
    with pytest.raises(InvalidConfig, match="not LIST"):
        changed({}, [an_operation(kind=APPEND)])


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


def test_a_broker_lets_delete_what_was_never_set_and_nothing_else() -> None:
    check_form(BROKER, [an_operation(kind=DELETE, value=None)])
    refuse_broker_change([an_operation("anything", DELETE, None)], ["num.partitions"])
    refuse_broker_change([], [])

    with pytest.raises(AdministrationRefused) as unknown:
        refuse_broker_change([an_operation("anything")], ["num.partitions"])
    with pytest.raises(AdministrationRefused) as read_only:
        refuse_broker_change([an_operation("num.partitions")], ["num.partitions"])
    assert (unknown.value.code, read_only.value.code) == (ErrorCode.invalid_config, ErrorCode.invalid_request)


@given(
    st.dictionaries(st.sampled_from(sorted(KNOWN_CONFIGS)), st.text(max_size=5), max_size=3),
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
