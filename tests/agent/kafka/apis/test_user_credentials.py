"""AlterUserScramCredentials and DescribeUserScramCredentials: what is refused, with which code."""

import hashlib
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.agent.read_path.wire import request
from tests.agent.running import Wire

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHA_256, SHA_512 = 1, 2


def upserting(name: str, mechanism: int = SHA_256, **changed: Any) -> dict[str, Any]:
    salted = hashlib.pbkdf2_hmac("sha256" if mechanism == SHA_256 else "sha512", b"p", b"salt", 4_096)
    return {
        **{"name": name, "mechanism": mechanism, "iterations": 4_096},
        **{"salt": b"salt", "salted_password": salted, **changed},
    }


def deleting(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def altered(
    wire: Wire, upserted: list[dict[str, Any]], deleted: list[dict[str, Any]] | None = None
) -> dict[str, ErrorCode]:
    response = await wire.ask(request(51, 0, upsertions=upserted, deletions=deleted or []))
    assert len(response.results) == len({one.user for one in response.results})
    return {one.user: one.error_code for one in response.results}


async def described(wire: Wire, *names: str) -> dict[str, tuple[ErrorCode, list[tuple[int, int]]]]:
    users = [{"name": name} for name in names] or None
    response = await wire.ask(request(50, 0, users=users))
    assert response.error_code == ErrorCode.none
    return {
        one.user: (one.error_code, [(info.mechanism, info.iterations) for info in one.credential_infos])
        for one in response.results
    }


async def test_credentials_are_set_described_and_deleted(wire: Wire) -> None:
    given = [upserting("ann"), upserting("ann", SHA_512, iterations=8_192)]
    assert await altered(wire, given) == {"ann": ErrorCode.none}
    assert (await described(wire, "ann"))["ann"] == (ErrorCode.none, [(SHA_256, 4_096), (SHA_512, 8_192)])

    assert await altered(wire, [], [deleting("ann")]) == {"ann": ErrorCode.none}
    assert (await described(wire))["ann"] == (ErrorCode.none, [(SHA_512, 8_192)])


@pytest.mark.parametrize(
    ("upserted", "deleted", "code"),
    [
        ([upserting("u", iterations=4_095)], [], ErrorCode.unacceptable_credential),
        ([upserting("u", iterations=16_385)], [], ErrorCode.unacceptable_credential),
        ([upserting("u", iterations=-1)], [], ErrorCode.unacceptable_credential),
        ([upserting("u", salt=b"")], [], ErrorCode.unacceptable_credential),
        ([upserting("u", salt=b"s" * 1_025)], [], ErrorCode.unacceptable_credential),
        ([upserting("u", salted_password=b"short")], [], ErrorCode.unacceptable_credential),
        ([upserting("")], [], ErrorCode.unacceptable_credential),
        ([upserting("u" * 256)], [], ErrorCode.unacceptable_credential),
        ([upserting("a\0b")], [], ErrorCode.unacceptable_credential),
        ([], [deleting("")], ErrorCode.unacceptable_credential),
        ([upserting("u", mechanism=0)], [], ErrorCode.unsupported_sasl_mechanism),
        ([], [deleting("u", 3)], ErrorCode.unsupported_sasl_mechanism),
        ([upserting("u"), upserting("u")], [], ErrorCode.duplicate_resource),
        ([upserting("u")], [deleting("u")], ErrorCode.duplicate_resource),
        ([], [deleting("u"), deleting("u")], ErrorCode.duplicate_resource),
        ([], [deleting("u")], ErrorCode.resource_not_found),
        ([upserting("u")], [deleting("u", SHA_512)], ErrorCode.resource_not_found),
    ],
)
async def test_what_kafka_refuses_is_refused_for_that_user_alone(
    wire: Wire, upserted: list[dict[str, Any]], deleted: list[dict[str, Any]], code: ErrorCode
) -> None:
    [user] = {one["name"] for one in (*upserted, *deleted)}

    answers = await altered(wire, [*upserted, upserting("beside")], deleted)

    assert answers == {user: code, "beside": ErrorCode.none}
    assert user not in await described(wire)


async def test_descriptions_of_strangers_and_repeated_names_are_refused(wire: Wire) -> None:
    await altered(wire, [upserting("known")])

    found = await described(wire, "known", "stranger", "twice", "twice")

    assert found["known"][0] == ErrorCode.none
    assert found["stranger"] == (ErrorCode.resource_not_found, [])
    assert found["twice"] == (ErrorCode.duplicate_resource, [])


async def test_a_request_that_changes_nothing_is_answered(wire: Wire) -> None:
    assert await altered(wire, []) == {}
