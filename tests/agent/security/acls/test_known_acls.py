"""Agents follow the ACLs in Postgres."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.security.acls.authorizer import Authorizer
from agent.security.acls.known_acls import KnownAcls
from agent.security.acls.settings import AuthorizationSettings
from agent.security.principal import Principal
from sequencer.client import Sequencer
from sequencer.database.database import SequencerUnavailable
from sequencer.security.acl import Acl, AclFilter, Operation, ResourceType
from sequencer.security.acls import AclPage, AclPlace
from tests.sequencer.builders import an_acl

_ACL = an_acl("t0")
_MANY = 1_000


class _Counting:
    """The changes as they are, and how many ACLs each answer had. It can be cut off."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self.is_away = False
        self.read: list[int] = []

    async def page(self, begin: AclPlace, cap: int) -> AclPage:
        if self.is_away:
            raise SequencerUnavailable("cut off")
        page = await self._sequencer.acl_changes.page(begin, cap)
        self.read.append(len(page.added) + len(page.removed))
        return page


def _acls(numbers: range) -> Sequence[Acl]:
    return [replace(_ACL, name=f"t{number}") for number in numbers]


def _allowed(authorizer: Authorizer, among: range) -> list[int]:
    rights = authorizer.rights(Principal("alice"), "10.0.0.1")
    return [number for number in among if rights.allows(Operation.READ, ResourceType.TOPIC, f"t{number}")]


def _following(sequencer: Sequencer) -> tuple[Authorizer, _Counting, KnownAcls]:
    authorizer = Authorizer(AuthorizationSettings(authorizer=True, acl_page=10))
    changes = _Counting(sequencer)
    return authorizer, changes, KnownAcls(changes, authorizer)


async def test_one_change_is_read_alone_whatever_else_there_is(sequencer: Sequencer) -> None:
    await sequencer.acls.add(_acls(range(35)), _MANY)
    authorizer, changes, known = _following(sequencer)

    await known.refresh()
    assert _allowed(authorizer, range(40)) == list(range(35))
    assert changes.read == [10, 10, 10, 5]

    await sequencer.acls.add(_acls(range(35, 36)), _MANY)
    await sequencer.acls.remove([AclFilter(name="t0")], _MANY)
    changes.read.clear()
    await known.refresh()
    await known.refresh()

    assert _allowed(authorizer, range(40)) == list(range(1, 36))
    assert changes.read == [2, 0]


async def test_the_last_snapshot_decides_while_postgres_is_away(sequencer: Sequencer) -> None:
    await sequencer.acls.add(_acls(range(2)), _MANY)
    authorizer, changes, known = _following(sequencer)

    changes.is_away = True
    with pytest.raises(SequencerUnavailable):
        await known.refresh()
    assert _allowed(authorizer, range(2)) == []
    assert not known.loaded.is_set()

    changes.is_away = False
    await known.refresh()
    changes.is_away = True
    with pytest.raises(SequencerUnavailable):
        await known.refresh()
    assert _allowed(authorizer, range(2)) == [0, 1]


async def test_an_agent_that_slept_through_a_thousand_changes_reads_everything(sequencer: Sequencer) -> None:
    await sequencer.acls.add(_acls(range(15)), _MANY)
    authorizer, changes, known = _following(sequencer)
    await known.refresh()
    await sequencer.acls.remove([AclFilter(name="t3")], _MANY)
    await sequencer.database.run("UPDATE acl_changes SET version = version + 2000")
    await sequencer.acls.remove([AclFilter(name="t4")], _MANY)
    changes.read.clear()

    await known.refresh()

    assert _allowed(authorizer, range(15)) == [number for number in range(15) if number not in {3, 4}]
    assert sum(changes.read) > 10


@pytest.mark.superuser  # empties a table
async def test_another_database_with_fewer_changes_is_read_from_its_beginning(sequencer: Sequencer) -> None:
    await sequencer.acls.add(_acls(range(15)), _MANY)
    authorizer, _, known = _following(sequencer)
    await known.refresh()

    await sequencer.database.run("TRUNCATE acls")
    await sequencer.database.run("UPDATE acl_changes SET version = 0, acls = 0")
    await sequencer.acls.add(_acls(range(20, 22)), _MANY)
    await sequencer.acls.add(_acls(range(22, 23)), _MANY)
    known.forget_all()
    assert _allowed(authorizer, range(25)) == list(range(15))
    await known.refresh()

    assert _allowed(authorizer, range(25)) == [20, 21, 22]
