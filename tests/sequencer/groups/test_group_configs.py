"""Configs of groups on the real Postgres."""

import pytest

from sequencer.client import Sequencer
from sequencer.groups import groups
from sequencer.groups.groups import InvalidId
from tests.sequencer.groups.groups import claimed


async def test_changes_of_a_groups_configs_add_up(sequencer: Sequencer) -> None:
    configs = sequencer.group_configs

    await configs.alter("g", {"a": "1", "b": "2"})
    await configs.alter("g", {"b": "3"}, ["a", "never.set"])
    await configs.alter("other", {"a": "4"})
    await configs.alter("third", {}, ["a"])

    assert await configs.of(["g", "third", "unknown", "\0"]) == {"g": {"b": "3"}}
    assert await configs.list() == ["g", "other"]


async def test_a_coordinator_learns_them_with_its_claim_and_its_lease(sequencer: Sequencer) -> None:
    await sequencer.group_configs.alter("g", {"a": "1"})

    held = {name: (await claimed(sequencer, name)) for name in ("g", "plain")}
    await sequencer.group_configs.alter("g", {"a": "2"})

    assert [held[name].config for name in held] == [{"a": "1"}, {}]
    epochs = {name: group.coordinator_epoch for name, group in held.items()}
    assert await sequencer.groups.still_held(epochs) == {"g": {"a": "2"}, "plain": {}}


async def test_a_listing_goes_from_page_to_page(
    sequencer: Sequencer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS_PER_PAGE", 2)
    for number in range(5):
        await sequencer.group_configs.alter(f"g{number}", {"a": "1"})

    assert await sequencer.group_configs.list() == [f"g{number}" for number in range(5)]


async def test_an_impossible_id_is_refused(sequencer: Sequencer) -> None:
    with pytest.raises(InvalidId):
        await sequencer.group_configs.alter("a\0b", {"a": "1"})
