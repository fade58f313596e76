"""Which quota applies, and which may be set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.quotas.entities import (
    InvalidQuota,
    QuotaKind,
    check_entity,
    check_value,
    levels,
    matches,
    quota_of,
)

NAMES = st.sampled_from(["a", "b"])
OURS = frozenset({("user", "a"), ("client-id", "a")})
ORDER: list[tuple[set[tuple[str, str | None]], tuple[str, str]]] = [
    ({("user", "a"), ("client-id", "b")}, ("a", "b")),
    ({("user", "a"), ("client-id", None)}, ("a", "b")),
    ({("user", "a")}, ("a", "")),
    ({("user", None), ("client-id", "b")}, ("a", "b")),
    ({("user", None), ("client-id", None)}, ("a", "b")),
    ({("user", None)}, ("a", "")),
    ({("client-id", "b")}, ("", "b")),
    ({("client-id", None)}, ("", "b")),
]
"""Kafka's order of precedence, and who shares a quota, for the user a with the client id b."""


@given(st.sets(st.integers(0, 7)))
def test_first_entity_of_kafkas_order_that_has_the_quota_applies(present: set[int]) -> None:
    quotas = {frozenset(ORDER[place][0]): {"producer_byte_rate": float(place + 1)} for place in present}
    # Entities of others, and other keys, change nothing.
    quotas[frozenset({("user", "b")})] = {"producer_byte_rate": 99.0}
    quotas[frozenset({("user", "a"), ("client-id", "a")})] = {"producer_byte_rate": 98.0}

    found = quota_of(QuotaKind.PRODUCE, "a", "b", quotas)

    first = min(present, default=None)
    assert found == (None if first is None else (first + 1.0, ORDER[first][1]))


def test_another_key_of_a_more_specific_entity_hides_no_quota() -> None:
    quotas = {
        frozenset({("user", "a")}): {"consumer_byte_rate": 1.0},
        frozenset({("user", None)}): {"producer_byte_rate": 2.0},
    }
    assert quota_of(QuotaKind.PRODUCE, "a", "b", quotas) == (2.0, ("a", ""))


def test_levels_are_kafkas() -> None:
    assert levels("a", "b") == [(frozenset(entity), shared) for entity, shared in ORDER]


@pytest.mark.parametrize(
    "entity",
    [
        {},
        {"user": ""},
        {"topic": "a"},
        {"user": "a", "ip": "10.0.0.1"},
        {"ip": "10.0.0.256"},
        {"user": "a\0"},
        {"client-id": "a" * 1_025},
    ],
)
def test_impossible_entity_is_refused(entity: dict[str, str | None]) -> None:
    with pytest.raises(InvalidQuota):
        check_entity(entity)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({"user": "a"}, "connection_creation_rate", 1.0),
        ({"ip": None}, "producer_byte_rate", 1.0),
        ({"user": None}, "producer_byte_rate", 0.0),
        ({"user": None}, "producer_byte_rate", 1.5),
        ({"user": None}, "producer_byte_rate", float("nan")),
        ({"user": None}, "request_percentage", float("inf")),
        ({"ip": "::1"}, "connection_creation_rate", 2.0**31),
    ],
)
def test_impossible_value_is_refused(entity: dict[str, str | None], key: str, value: float) -> None:
    with pytest.raises(InvalidQuota):
        check_value(check_entity(entity), key, value)


def test_strict_filter_selects_entities_of_exactly_its_types() -> None:
    both = frozenset({("user", "a"), ("client-id", None)})
    assert matches(both, {"user": "a"}, frozenset(), strict=False)
    assert not matches(both, {"user": "a"}, frozenset(), strict=True)
    assert matches(both, {"client-id": None}, frozenset({"user"}), strict=True)
    assert not matches(both, {"client-id": "a"}, frozenset(), strict=False)
    assert matches(both, {}, frozenset(), strict=False)
    assert not matches(both, {}, frozenset(), strict=True)
