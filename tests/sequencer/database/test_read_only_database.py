"""Postgres that answers and takes no writes: a full disk, a switch-over."""

import pytest
from psycopg.conninfo import make_conninfo

from sequencer.client import Sequencer
from sequencer.commits.commits import Assigned
from sequencer.database.database import SequencerUnavailable
from sequencer.settings import SequencerSettings
from storage.identifiers import Offset, Partition
from tests.sequencer.builders import ABatch, accepted, reserved


async def test_a_database_that_takes_no_writes_is_unavailable_and_has_written_nothing(
    sequencer: Sequencer, database_url: str
) -> None:
    topic = await sequencer.topics.create("orders", 1, {})
    segment = await reserved(sequencer, [ABatch(topic_id=topic.topic_id, partition=Partition(0))])
    url = make_conninfo(database_url, options="-c default_transaction_read_only=on")
    read_only = await Sequencer.open(url, SequencerSettings())
    try:
        with pytest.raises(SequencerUnavailable, match="takes no writes now"):
            await read_only.commits.commit([segment])
        with pytest.raises(SequencerUnavailable, match="takes no writes now"):
            await read_only.topics.delete("orders")
        assert (await read_only.topics.by_name(["orders"])).keys() == {"orders"}
    finally:
        await read_only.close()

    [answer] = await sequencer.commits.commit([segment])
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(0)),)
