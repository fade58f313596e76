"""The groups that a request names, in every version. A request that is split and joined again loses
nothing.
"""

import sys
from datetime import timedelta
from io import BytesIO
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_reader, entity_writer

from agent.kafka.forwarding.forwarding import BadResponse, decode_response, encode_request
from agent.kafka.forwarding.split_requests import groups_of, is_coordinated, join, split
from tests.agent.read_path.wire import request

OFFSET_FETCH, DESCRIBE_GROUPS, DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE = 9, 15, 42, 69
GROUPS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12)


def a_request(api_key: int, groups: list[str]) -> Any:
    match api_key:
        case 9:
            asked = [
                {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1} for group in groups
            ]
            return request(9, 9, groups=asked, require_stable=True)
        case 15:
            return request(15, 5, groups=tuple(groups), include_authorized_operations=True)
        case 42:
            return request(42, 2, groups_names=tuple(groups))
        case _:
            return request(69, 0, group_ids=tuple(groups), include_authorized_operations=False)


def an_answer(api_key: int, part: Any) -> Any:
    """What a coordinator answers to everything, as far as `join` looks at it."""
    schema: Any = load_response_schema(api_key, part.__version__)
    field = "results" if api_key == DELETE_GROUPS else "groups"
    entry = _entry_class(schema, field)
    empties: dict[int, dict[str, Any]] = {
        9: {"topics": (), "error_code": ErrorCode.none},
        15: {"error_code": ErrorCode.none, "group_state": "", "protocol_type": "", "protocol_data": "",
        "members": ()},
        42: {"error_code": ErrorCode.none},
        69: {
            "error_code": ErrorCode.none, "group_state": "", "group_epoch": 1, "assignment_epoch": 1,
            "assignor_name": "", "members": (),
        },
    }  # fmt: skip
    entries = tuple(entry(group_id=group, **empties[api_key]) for group in groups_of(api_key, part))
    return schema(throttle_time=timedelta(0), **{field: entries})


def _entry_class(schema: Any, field: str) -> Any:
    return get_args(get_type_hints(schema, vars(sys.modules[schema.__module__]))[field])[0]


@pytest.mark.parametrize("api_key", [OFFSET_FETCH, DESCRIBE_GROUPS, DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE])
@given(groups=GROUPS, places=st.integers(1, 4))
def test_parts_ask_for_what_the_whole_asks_and_join_in_its_order(
    api_key: int, groups: list[str], places: int
) -> None:
    whole = a_request(api_key, groups)

    parts = split(api_key, whole, lambda group: ord(group) % places)
    answer = join(api_key, whole, [an_answer(api_key, part) for part in parts.values()])

    for place, part in parts.items():
        assert all(ord(group) % places == place for group in groups_of(api_key, part))
    assert sorted(group for part in parts.values() for group in groups_of(api_key, part)) == sorted(groups)
    assert [entry.group_id for entry in getattr(answer, "results", None) or answer.groups] == groups


@pytest.mark.parametrize("api_key", [OFFSET_FETCH, DESCRIBE_GROUPS, DELETE_GROUPS, CONSUMER_GROUP_DESCRIBE])
def test_a_part_goes_over_the_wire_and_its_answer_comes_back(api_key: int) -> None:
    whole = a_request(api_key, ["a", "b", "c"])
    part = split(api_key, whole, lambda group: group == "b")[False]

    frame = encode_request(api_key, part.__version__, -7, "me", part)

    header, header_bytes = entity_reader(RequestHeader)(frame, 0)
    read, payload_bytes = entity_reader(type(part))(frame, header_bytes)
    assert (header.correlation_id, header.client_id) == (-7, "me")
    assert header_bytes + payload_bytes == len(frame)
    assert read == part
    buffer = BytesIO(b"\xff\xff\xff\xf9\x00")
    buffer.seek(5)
    answer = an_answer(api_key, part)
    entity_writer(type(answer))(buffer, answer)
    assert decode_response(api_key, part.__version__, buffer.getvalue()) == answer
    with pytest.raises(BadResponse):
        decode_response(api_key, part.__version__, buffer.getvalue()[:-1])


@pytest.mark.parametrize("api_key", [8, 9, 11, 12, 13, 14, 47, 68])
def test_every_version_of_a_request_of_one_group_names_it(api_key: int) -> None:
    seen = 0
    for version in range(20):
        try:
            schema = load_request_schema(api_key, version)
        except Exception:  # noqa: BLE001 - the schema has no such version
            continue
        if "group_id" in schema.__dataclass_fields__:
            bare = object.__new__(schema)
            object.__setattr__(bare, "group_id", "a-group")
            assert groups_of(api_key, bare) == ("a-group",)
            seen += 1
    assert seen > 0
    assert is_coordinated(api_key)


def test_offset_fetch_names_one_group_before_version_8() -> None:
    assert groups_of(OFFSET_FETCH, request(9, 7, group_id="g", topics=None, require_stable=False)) == ("g",)


def test_metadata_concerns_no_group() -> None:
    assert groups_of(3, request(3, 0, topics=())) == ()
    assert not is_coordinated(3)
