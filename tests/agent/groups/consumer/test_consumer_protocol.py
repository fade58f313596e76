"""The embedded protocol of classic consumers: every version is read, and assignments are written in the
version that their reader knows.
"""

import io
import struct
import subprocess
import sys
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_writer

from agent.groups.consumer.consumer_protocol import (
    Malformed,
    by_id,
    by_name,
    read_assignment,
    read_subscription,
    write_assignment,
)
from storage.identifiers import Partition, TopicId

ORDERS = {"orders": frozenset(map(Partition, (0, 2)))}


def subscription(version: int, schema_version: int | None = None, **fields: Any) -> bytes:
    schema = import_module(
        f"kio.schema.consumer_protocol_subscription."
        f"v{version if schema_version is None else schema_version}.data"
    )
    if "owned_partitions" in fields:
        fields["owned_partitions"] = tuple(
            schema.TopicPartition(topic=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in fields["owned_partitions"].items()
        )
    body = io.BytesIO()
    entity_writer(schema.ConsumerProtocolSubscription)(
        body, schema.ConsumerProtocolSubscription(topics=("orders", "clicks"), user_data=b"mine", **fields)
    )
    return struct.pack(">h", version) + body.getvalue()


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (0, {}),
        (1, {"owned_partitions": ORDERS}),
        (2, {"owned_partitions": ORDERS, "generation_id": 7}),
        (3, {"owned_partitions": ORDERS, "generation_id": 7, "rack_id": "a"}),
    ],
)
def test_subscriptions_of_all_versions_are_read(version: int, fields: dict[str, Any]) -> None:
    read = read_subscription(subscription(version, **fields))

    assert read.topics == {"orders", "clicks"}
    assert read.owned == (ORDERS if version else {})
    assert read.rack_id == ("a" if version == 3 else None)


def test_a_newer_subscription_is_read_as_the_newest_known() -> None:
    data = (
        subscription(9, 3, owned_partitions=ORDERS, generation_id=7, rack_id=None) + b"what version 9 added"
    )

    assert read_subscription(data).owned == ORDERS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\xff\xff\0\0\0\0\0\0\0\0",
        b"\0\1\0\0\0\5ab",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_other_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_subscription(data)


ON_A_SMALL_MACHINE = """
import resource
from agent.groups.classic.classic_members import subscribed_topics
from agent.groups.consumer.consumer_protocol import Malformed, read_assignment, read_subscription
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
announced = bytes.fromhex("0000 7fffffff 000161")
assert subscribed_topics(announced) is None
for read in (read_subscription, read_assignment):
    try:
        read(announced)
    except Malformed:
        print("malformed")
"""


def test_an_array_that_is_only_announced_takes_no_memory() -> None:
    """kio allocates 16 GiB for it. With less memory, that ends the process."""
    ended = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_MACHINE], capture_output=True, text=True, check=True, timeout=60
    )

    assert ended.stdout.split() == ["malformed"] * 2


@given(
    data=st.lists(st.sampled_from([b"\0", b"\1", b"\2", b"\xff", b"a"]), max_size=24).map(b"".join)
    | st.binary(max_size=60)
)
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except Malformed:
            continue


@given(
    version=st.integers(0, 5),
    partitions=st.dictionaries(
        st.text("abc", min_size=1), st.frozensets(st.integers(0, 9).map(Partition), min_size=1), max_size=3
    ),
)
def test_an_assignment_is_read_as_written_in_its_readers_version(
    version: int, partitions: dict[str, frozenset[Partition]]
) -> None:
    data = write_assignment(partitions, like=struct.pack(">h", version))

    assert struct.unpack(">h", data[:2])[0] == min(version, 3)
    assert read_assignment(data).partitions == partitions
    assert read_assignment(data).user_data == b""


def test_a_negative_partition_is_malformed() -> None:
    with pytest.raises(Malformed):
        read_assignment(write_assignment({"orders": frozenset({Partition(-1)})}, like=b"\0\0"))


def test_no_bytes_are_an_empty_assignment() -> None:
    assert read_assignment(b"").partitions == {}


def test_topics_without_an_id_or_a_name_are_left_out() -> None:
    orders = TopicId(UUID(int=1))

    assert by_id(ORDERS | {"gone": frozenset({Partition(1)})}, {"orders": orders}.get) == {
        orders: ORDERS["orders"]
    }
    assert by_name(
        {orders: ORDERS["orders"], TopicId(UUID(int=2)): frozenset({Partition(1)})}, {orders: "o"}.get
    ) == {"o": ORDERS["orders"]}
