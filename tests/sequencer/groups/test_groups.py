"""Groups in Postgres: claims, writes and deletions by their coordinators, and listings."""

import pytest

from sequencer.client import Sequencer
from sequencer.groups.committed_offsets import CommitVerdict, OffsetQuery
from sequencer.groups.groups import LONGEST_ID_BYTES, DeleteOutcome, InvalidId, ListedGroup
from sequencer.groups.stored_groups import GroupKind, StoredGroup, StoredMember
from storage.identifiers import NodeId
from tests.sequencer.groups.groups import (
    ANN,
    BOB,
    a_change,
    a_commit,
    a_member,
    a_topic,
    claimed,
    offsets_of,
    with_members,
)
from tests.sequencer.housekeeping.housekeeping import count

STRANGE_IDS = (
    "a",
    "Größe",
    "日本/語",
    " ",
    "x" * LONGEST_ID_BYTES,
    "'; DROP TABLE groups --",
    "a\nb",
    "{a,b}",
    '"\\',
    "🦀" * 256,
)


async def test_a_claim_finds_what_the_coordinator_before_it_wrote(sequencer: Sequencer) -> None:
    first = await claimed(sequencer, "g")
    members = {"m1": a_member(3, topics=["orders"]), "m2": a_member(4)}
    change = a_change(
        generation=4, document={"leader": "m1", "nested": [1, None, {"a": "é\0"}]}, members=members
    )
    assert await sequencer.groups.write("g", first.coordinator_epoch, change)

    second = await claimed(sequencer, "g", BOB)

    assert first.stored is None
    assert second.coordinator_epoch != first.coordinator_epoch
    assert second.stored == StoredGroup(
        group_id="g",
        kind="classic",
        generation=4,
        state="Stable",
        protocol_type="consumer",
        document=change.document,
        members=members,
    )


async def test_a_group_that_is_not_there_is_made_only_if_asked(sequencer: Sequencer) -> None:
    assert await sequencer.groups.claim("g", ANN, create=False) is None
    assert await count(sequencer, "groups") == 0

    made = await claimed(sequencer, "g")
    again = await sequencer.groups.claim("g", ANN, create=False)

    assert again is not None
    assert again.stored is None, "nobody has written it yet"
    assert again.coordinator_epoch > made.coordinator_epoch


async def test_a_write_changes_the_members_it_names_and_leaves_the_others(sequencer: Sequencer) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    members = {name: a_member(1) for name in ("stays", "changes", "leaves")}
    await sequencer.groups.write("g", epoch, a_change(members=members))

    changes = {"changes": a_member(2, rack="r"), "leaves": None, "joins": a_member(2), "never came": None}
    assert await sequencer.groups.write("g", epoch, a_change(generation=2, kind="consumer", members=changes))

    stored = (await claimed(sequencer, "g")).stored
    assert stored is not None
    assert (stored.kind, stored.generation) == ("consumer", 2)
    assert stored.members == {"stays": a_member(1), "changes": a_member(2, rack="r"), "joins": a_member(2)}


async def test_a_fenced_coordinator_writes_nothing(sequencer: Sequencer) -> None:
    old = await claimed(sequencer, "g")
    await sequencer.groups.write("g", old.coordinator_epoch, a_change(members={"m1": a_member(1)}))
    new = await claimed(sequencer, "g", BOB)

    change = a_change(generation=9, members={"m1": None, "m2": a_member(9)})
    assert not await sequencer.groups.write("g", old.coordinator_epoch, change)

    after = (await claimed(sequencer, "g")).stored
    assert after == new.stored


async def test_of_an_agents_groups_those_claimed_by_others_or_deleted_are_told(sequencer: Sequencer) -> None:
    held = {name: (await claimed(sequencer, name)).coordinator_epoch for name in ("mine", "taken", "deleted")}
    await claimed(sequencer, "taken", BOB)
    assert await sequencer.groups.delete("deleted", held["deleted"]) is DeleteOutcome.DELETED

    assert await sequencer.groups.still_held(held) == {"mine": {}}
    assert await sequencer.groups.still_held({}) == {}


async def test_an_empty_group_is_deleted_with_its_offsets_and_its_members(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in ("g", "other")}
    for name, epoch in epochs.items():
        await sequencer.committed_offsets.commit([a_commit(topic, name, epoch, 5)])

    assert await sequencer.groups.delete("g", epochs["g"]) is DeleteOutcome.DELETED

    assert await sequencer.groups.claim("g", ANN, create=False) is None
    assert [
        row.group_id for row in await sequencer.database.run("SELECT group_id FROM committed_offsets")
    ] == ["other"]
    assert await sequencer.groups.delete("g", epochs["g"]) is DeleteOutcome.NOT_COORDINATOR


async def test_a_group_with_members_or_of_another_coordinator_is_not_deleted(sequencer: Sequencer) -> None:
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.groups.write("g", epoch, a_change(members={"m": a_member(1)}))

    assert await sequencer.groups.delete("g", epoch) is DeleteOutcome.NOT_EMPTY
    await claimed(sequencer, "g", BOB)
    assert await sequencer.groups.delete("g", epoch) is DeleteOutcome.NOT_COORDINATOR
    assert await count(sequencer, "groups") == await count(sequencer, "group_members") == 1


async def test_a_group_made_again_does_not_know_the_coordinator_of_the_one_before(
    sequencer: Sequencer,
) -> None:
    """As if its agent had slept through the group's deletion."""
    topic = await a_topic(sequencer)
    asleep = (await claimed(sequencer, "g")).coordinator_epoch
    await sequencer.groups.delete("g", asleep)
    awake = (await claimed(sequencer, "g", BOB)).coordinator_epoch

    [verdict] = await sequencer.committed_offsets.commit([a_commit(topic, "g", asleep, 7)])

    assert verdict is CommitVerdict.NOT_COORDINATOR
    assert not await sequencer.groups.write("g", asleep, a_change())
    assert await sequencer.committed_offsets.fetch(
        [OffsetQuery(group_id="g", coordinator_epoch=asleep, partitions=None)]
    ) == [None]
    assert await offsets_of(sequencer, topic, "g", awake) == {}


async def test_emptiness_is_dated_from_when_the_last_member_went(sequencer: Sequencer) -> None:
    async def empty_since() -> object:
        [row] = await sequencer.database.run("SELECT empty_since FROM groups")
        return row.empty_since

    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    made = await empty_since()
    await sequencer.groups.write("g", epoch, a_change(members={"m": a_member(1)}))
    assert await empty_since() is None

    await sequencer.groups.write("g", epoch, a_change(members={"m": None}, is_empty=True))
    emptied = await empty_since()
    await sequencer.groups.write("g", epoch, a_change(generation=7, is_empty=True))

    assert made is not None
    assert emptied is not None
    assert await empty_since() == emptied != made


async def test_listings_filter_by_state_and_kind_and_go_on_over_pages(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.groups.groups.GROUPS_PER_PAGE", 2)
    wanted: list[tuple[str, GroupKind, str]] = [
        ("a", "classic", "Stable"),
        ("b", "consumer", "Stable"),
        ("c", "consumer", "Assigning"),
        ("d", "classic", "Empty"),
    ]
    for name, kind, state in wanted:
        epoch = (await claimed(sequencer, name, BOB)).coordinator_epoch
        await sequencer.groups.write(name, epoch, a_change(kind=kind, state=state))
    await claimed(sequencer, "never written")

    async def listed(*states: str, kinds: tuple[GroupKind, ...] = ()) -> str:
        return "".join(group.group_id[0] for group in await sequencer.groups.list(states, kinds))

    assert await listed() == "abcdn"
    assert await listed("Stable") == "ab"
    assert await listed("Stable", "Empty", kinds=("classic",)) == "adn"
    assert await listed(kinds=("consumer",)) == "bc"
    assert await listed("Dead") == ""
    assert (await sequencer.groups.list(["Assigning"]))[0] == ListedGroup(
        group_id="c", kind="consumer", protocol_type="consumer", state="Assigning", coordinator=BOB
    )


async def test_groups_with_members_are_listed_apart(sequencer: Sequencer) -> None:
    await with_members(sequencer, "lively", ann=1)
    left = await with_members(sequencer, "left", ann=1)
    await sequencer.groups.write("left", left, a_change(members={"ann": None}, is_empty=True))
    await claimed(sequencer, "never written")

    assert [group.group_id for group in await sequencer.groups.list(with_members=True)] == ["lively"]
    assert len(await sequencer.groups.list()) == 3


async def test_ids_may_hold_anything_but_nul(sequencer: Sequencer) -> None:
    topic = await a_topic(sequencer)
    epochs = {name: (await claimed(sequencer, name)).coordinator_epoch for name in STRANGE_IDS}
    for name, epoch in epochs.items():
        assert await sequencer.groups.write(name, epoch, a_change(members={name: a_member(1)}))

    commits = [
        a_commit(topic, name, epoch, 3, member_id=name, member_epoch=1) for name, epoch in epochs.items()
    ]

    assert set(await sequencer.committed_offsets.commit(commits)) == {CommitVerdict.DONE}
    assert await sequencer.groups.still_held(epochs) == {name: {} for name in STRANGE_IDS}
    assert [group.group_id for group in await sequencer.groups.list()] == sorted(STRANGE_IDS, key=str.encode)
    for name in STRANGE_IDS:
        stored = (await claimed(sequencer, name)).stored
        assert stored is not None
        assert stored.members == {name: StoredMember(epoch=1, document={})}


@pytest.mark.parametrize(
    "impossible", ["", "a\0b", "x" * (LONGEST_ID_BYTES + 1)], ids=["empty", "NUL", "too long"]
)
async def test_impossible_ids_are_refused_before_postgres_sees_them(
    sequencer: Sequencer, impossible: str
) -> None:
    with pytest.raises(InvalidId):
        await sequencer.groups.claim(impossible, NodeId(1), create=True)
    epoch = (await claimed(sequencer, "g")).coordinator_epoch
    with pytest.raises(InvalidId):
        await sequencer.groups.write("g", epoch, a_change(members={impossible: a_member(1)}))
