"""A frozen Postgres process holds the connection and answers nothing, so only the client can give up."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sequencer.client import Sequencer, SequencerSettings
from sequencer.commits.commits import Assigned
from sequencer.database.database import CommitOutcomeUnknown
from storage.identifiers import Offset, Partition
from tests.sequencer.builders import ABatch, accepted, committed, reserved

ANSWER_TIMEOUT_S = 1.5
GIVING_UP_S = 40.0


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Sequencer]:
    opened = await Sequencer.open(database_url, SequencerSettings(database_answer_timeout_s=ANSWER_TIMEOUT_S))
    yield opened
    await opened.close()


@asynccontextmanager
async def frozen(sequencer: Sequencer) -> AsyncIterator[None]:
    """Every process that serves a connection of the pool stands still; further connections get new ones."""
    rows = await sequencer.database.run("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    for row in rows:
        os.kill(row.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for row in rows:
            os.kill(row.pid, signal.SIGCONT)


async def test_a_commit_that_gets_no_answer_is_unknown_within_a_bound_and_repeated(
    impatient: Sequencer,
) -> None:
    topic = await impatient.topics.create("orders", 1, {})
    batch = ABatch(topic_id=topic.topic_id, partition=Partition(0))
    await committed(impatient, [batch])  # the connection for commits is there
    segment = await reserved(impatient, [batch])
    started_s = time.monotonic()

    async with frozen(impatient):
        with pytest.raises(CommitOutcomeUnknown, match="TIDELOG_DATABASE_ANSWER_TIMEOUT_S"):
            await impatient.commits.commit([segment])

    assert time.monotonic() - started_s < ANSWER_TIMEOUT_S + GIVING_UP_S
    [answer] = await impatient.commits.commit([segment])
    assert accepted(answer).outcomes == (Assigned(base_offset=Offset(1)),)


async def test_a_callers_own_timeout_stays_its_own(sequencer: Sequencer) -> None:
    with pytest.raises(TimeoutError):
        async with sequencer.database.connection(), asyncio.timeout(0.01):
            await asyncio.sleep(1)
