"""ACLs on the real Postgres."""

import asyncio
import random
from dataclasses import replace

import pytest

from sequencer.client import Sequencer
from sequencer.security.acl import Acl, AclFilter, Operation, ResourceType
from sequencer.security.acls import BEFORE_ALL_ACLS, InvalidAcl, TooManyAcls
from tests.sequencer.builders import an_acl
from tests.support.java import Java
from tests.support.kafka_authorizer import (
    added,
    answers,
    authorizer_program,
    listed,
    random_acl,
    random_filter,
    started,
)
from tests.support.seeds import seeds

_ACL = an_acl("orders")
_ALL = AclFilter()
_MANY = 1_000


async def test_acls_added_twice_exist_once(sequencer: Sequencer) -> None:
    other = replace(_ACL, name="payments")

    await sequencer.acls.add([_ACL, _ACL], _MANY)
    await sequencer.acls.add([_ACL, other], _MANY)
    await sequencer.acls.add([_ACL], _MANY)
    await sequencer.acls.add([], _MANY)

    assert {*await sequencer.acls.matching(_ALL, _MANY)} == {_ACL, other}
    assert (await sequencer.acl_changes.page(BEFORE_ALL_ACLS, 10)).newest == 2


async def test_removed_acls_are_returned_for_every_filter_that_selects_them(sequencer: Sequencer) -> None:
    other = replace(_ACL, name="payments", operation=Operation.WRITE)
    await sequencer.acls.add([_ACL, other], _MANY)
    asked = [
        AclFilter(name="orders"),
        AclFilter(name="none"),
        AclFilter(name="a\0b"),
        AclFilter(principal="User:alice"),
    ]

    gone = await sequencer.acls.remove(asked, _MANY)
    again = await sequencer.acls.remove(asked, _MANY)

    assert [set(one) for one in gone] == [{_ACL}, set(), set(), {_ACL, other}]
    assert again == [[], [], [], []]
    assert await sequencer.acls.matching(_ALL, _MANY) == []


async def test_bounds_refuse_as_a_whole(sequencer: Sequencer) -> None:
    acls = [replace(_ACL, name=f"t{number}") for number in range(5)]
    await sequencer.acls.add(acls[:3], 4)

    with pytest.raises(TooManyAcls):
        await sequencer.acls.add(acls[2:], 4)
    with pytest.raises(TooManyAcls):
        await sequencer.acls.matching(_ALL, 2)
    with pytest.raises(TooManyAcls):
        await sequencer.acls.remove([_ALL], 2)
    assert len(await sequencer.acls.matching(_ALL, 3)) == 3
    await sequencer.acls.remove([AclFilter(name="t0")], 1)
    await sequencer.acls.add(acls[3:], 4)

    assert {acl.name for acl in await sequencer.acls.matching(_ALL, 4)} == {"t1", "t2", "t3", "t4"}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(_ACL, name=""),
        replace(_ACL, name="x" * 1_025),
        replace(_ACL, host="a\0"),
        replace(_ACL, principal="alice"),
        replace(_ACL, resource_type=ResourceType.CLUSTER),
    ],
)
async def test_impossible_acls_are_refused(sequencer: Sequencer, wrong: Acl) -> None:
    with pytest.raises(InvalidAcl):
        await sequencer.acls.add([_ACL, wrong], _MANY)

    assert await sequencer.acls.matching(_ALL, _MANY) == []


async def test_many_acls_are_read_page_by_page(sequencer: Sequencer) -> None:
    acls = {replace(_ACL, name=f"t{number}") for number in range(10)}
    await sequencer.acls.add(acls, _MANY)

    for page in (1, 3, 5, 10, 11):
        found = await sequencer.acls.matching(_ALL, _MANY, page)
        assert len(found) == len(acls)
        assert {*found} == acls


async def test_changes_at_the_same_time_miss_nothing(sequencer: Sequencer) -> None:
    """Writers add and remove while a reader follows in pages of two."""

    async def write(number: int) -> None:
        mine = [replace(_ACL, name=f"t{number}-{step}") for step in range(6)]
        for acl in mine:
            await sequencer.acls.add([acl, replace(_ACL, name="shared")], _MANY)
        await sequencer.acls.remove([AclFilter(name=mine[0].name), AclFilter(name="shared")], _MANY)

    seen: set[Acl] = set()
    place = BEFORE_ALL_ACLS

    async def follow() -> bool:
        nonlocal place
        page = await sequencer.acl_changes.page(place, 2)
        place = page.end
        seen.difference_update(page.removed)
        seen.update(page.added)
        return page.is_last

    writing = asyncio.gather(*(write(number) for number in range(4)))
    while not writing.done():
        await follow()
    await writing
    while not await follow():
        pass

    assert seen == {*await sequencer.acls.matching(_ALL, _MANY)}
    assert len(seen) >= 20


async def test_rows_of_removed_acls_go_after_a_thousand_changes(sequencer: Sequencer) -> None:
    await sequencer.acls.add([_ACL], _MANY)
    await sequencer.acls.remove([_ALL], _MANY)
    await sequencer.database.run("UPDATE acl_changes SET version = version + 1000")
    await sequencer.acls.add([replace(_ACL, name="new")], _MANY)

    await sequencer.acls.remove([_ALL], _MANY)

    page = await sequencer.acl_changes.page(BEFORE_ALL_ACLS, 10)
    assert [acl.name for acl in page.removed] == ["new"]
    assert (page.newest, page.forgotten) == (1_004, 4)


async def test_filters_select_what_kafkas_authorizer_selects(sequencer: Sequencer, java: Java) -> None:
    program = authorizer_program(java)
    for seed in seeds(1):
        chosen = random.Random(seed)
        acls = [
            acl
            for acl in {random_acl(chosen) for _ in range(150)}
            if acl.resource_type is not ResourceType.CLUSTER
        ]
        await sequencer.acls.add(acls, _MANY)
        filters = [random_filter(chosen, acls) for _ in range(300)]
        commands = [started([], allow_everyone=False)]
        commands += [added(number, acl) for number, acl in enumerate(acls)]

        theirs = answers(program, [*commands, *(listed(one) for one in filters)])

        assert any(len(line) > 2 for line in theirs)
        for one, line in zip(filters, theirs, strict=True):
            ours = sorted(acls.index(acl) for acl in await sequencer.acls.matching(one, _MANY))
            assert str(ours) == line, (seed, one)
