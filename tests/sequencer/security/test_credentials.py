"""Credentials in Postgres: set, changed, deleted, and learned of by number."""

import asyncio
from dataclasses import replace

import pytest

from sequencer.client import Sequencer
from sequencer.security import credentials as module
from sequencer.security.credentials import (
    ChangeMark,
    CredentialKey,
    InvalidUserName,
    ScramKeys,
    ScramMechanism,
)

KEYS = ScramKeys(salt=b"salt", iterations=4096, stored_key=b"stored", server_key=b"server")
SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def key(user: str, mechanism: ScramMechanism = SHA_256) -> CredentialKey:
    return CredentialKey(user, mechanism)


async def learn_all(sequencer: Sequencer, mark: ChangeMark) -> list[tuple[CredentialKey, bool]]:
    found = []
    while (news := await sequencer.user_credentials.changes_after(mark)).changed:
        found += [(one, one in news.deleted) for one in news.changed]
        mark = news.mark
    return found


async def test_what_is_set_is_found_and_what_is_deleted_is_not(sequencer: Sequencer) -> None:
    users = sequencer.user_credentials
    changed = replace(KEYS, stored_key=b"other")

    assert not await users.alter([(key("ann"), KEYS), (key("ann", SHA_512), KEYS)])
    assert not await users.alter([(key("ann"), changed)], [key("ann", SHA_512)])

    [found] = (await users.of(["ann", "bob"]))["ann"]
    assert (found.key, found.keys) == (key("ann"), changed)
    assert [one.key for one in await users.list()] == [key("ann")]


async def test_one_refused_change_of_a_user_refuses_all_of_that_user_alone(sequencer: Sequencer) -> None:
    users = sequencer.user_credentials

    refused = await users.alter([(key("ann"), KEYS), (key("bob"), KEYS)], [key("ann", SHA_512)])

    assert refused == {"ann"}
    assert set(await users.of(["ann", "bob"])) == {"bob"}


@pytest.mark.parametrize(("must_exist", "refused"), [(True, {"bob"}), (False, {"ann"}), (None, set())])
async def test_users_are_refused_for_being_there_or_not(
    sequencer: Sequencer, must_exist: bool | None, refused: set[str]
) -> None:
    users = sequencer.user_credentials
    await users.alter([(key("ann"), KEYS)])

    given = [(key("ann", SHA_512), KEYS), (key("bob"), KEYS)]
    assert await users.alter(given, users_must_exist=must_exist) == refused


async def test_a_deleted_user_counts_as_not_there(sequencer: Sequencer) -> None:
    users = sequencer.user_credentials
    await users.alter([(key("ann"), KEYS)])
    await users.alter((), [key("ann")])

    assert await users.alter((), [key("ann")]) == {"ann"}
    assert not await users.alter([(key("ann"), KEYS)], users_must_exist=False)


async def test_each_later_change_is_learned_once_in_order(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = sequencer.user_credentials
    await users.alter([(key("before"), KEYS)])
    mark = await users.newest()
    monkeypatch.setattr(module, "PER_PAGE", 2)  # one change spans several pages

    await users.alter([(key(name), KEYS) for name in ("c", "a", "b", "d", "e")])
    await users.alter((), [key("a")])

    assert await learn_all(sequencer, mark) == [
        (key("b"), False),
        (key("c"), False),
        (key("d"), False),
        (key("e"), False),
        (key("a"), True),
    ]
    assert await learn_all(sequencer, await users.newest()) == []


async def test_deletions_are_forgotten_and_who_missed_them_is_told_so(sequencer: Sequencer) -> None:
    users = sequencer.user_credentials
    await users.alter([(key("ann"), KEYS), (key("bob"), KEYS)])
    mark = await users.newest()
    await users.alter((), [key("ann")])
    async with sequencer.database.connection() as connection:
        await connection.execute("UPDATE security SET credential_changes = credential_changes + 20000")
        await users.alter([(key("bob"), KEYS)])
        cursor = await connection.execute("SELECT count(*) FROM user_credentials")
        [[rows]] = await cursor.fetchall()

    news = await users.changes_after(mark)

    assert rows == 1
    assert news.changed == [key("bob")]
    assert not news.is_complete


async def test_changes_at_once_all_count_and_are_numbered_in_commit_order(sequencer: Sequencer) -> None:
    users = sequencer.user_credentials
    mark = await users.newest()

    await asyncio.gather(*(users.alter([(key(f"user {n % 5}"), KEYS)]) for n in range(20)))

    assert len(await learn_all(sequencer, mark)) == 5
    assert (await users.newest()).number == mark.number + 20


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "ü" * 128, "\ud800"])
async def test_impossible_names_are_refused_and_never_found(sequencer: Sequencer, name: str) -> None:
    with pytest.raises(InvalidUserName):
        await sequencer.user_credentials.alter([(key(name), KEYS)])

    assert await sequencer.user_credentials.of([name]) == {}


async def test_each_cluster_has_a_decoy_key(sequencer: Sequencer) -> None:
    decoy_key = await sequencer.user_credentials.decoy_key()

    assert len(decoy_key) == 32
    assert decoy_key == await sequencer.user_credentials.decoy_key()
