"""What a transaction costs does not grow with those that ended before it."""

from sequencer.client import Sequencer
from sequencer.commits.coordinates import PartitionKey
from tests.sequencer.commits.test_transactions import a_producer, a_topic, end, plain, write
from tests.sequencer.plans import pages_touched

ENDED = 3_000
FEW_PAGES = 20


async def _pages_of_an_end(sequencer: Sequencer, key: PartitionKey) -> int:
    producer = await a_producer(sequencer)
    await write(sequencer, producer, key)
    async with sequencer.database.connection() as connection, connection.transaction(force_rollback=True):
        cursor = await connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS) SELECT end_transaction('tx', %s, %s, true, 'client2',"
            " gen_random_uuid(), 'inline/', 1)",
            (producer.producer_id, producer.producer_epoch),
            binary=False,
        )
        plan = "\n".join(row[0] for row in await cursor.fetchall())
    await end(sequencer, producer)
    return pages_touched(plan)


async def test_an_end_does_not_read_the_rows_of_ended_transactions(sequencer: Sequencer) -> None:
    """They stay in the index for as long as some snapshot may see them, such as that of a backup."""
    [key] = await a_topic(sequencer, 1)
    await plain(sequencer, key, ENDED)
    await _pages_of_an_end(sequencer, key)
    before = await _pages_of_an_end(sequencer, key)

    async with sequencer.database.connection() as backup, backup.transaction():
        await backup.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await backup.execute("SELECT 1 FROM topics")
        await sequencer.database.run(
            "INSERT INTO transaction_partitions (producer_id, topic_id, partition, first_offset, expires_at)"
            " SELECT number, %(topic_id)s, 0, number, now() FROM generate_series(0, %(ended)s - 1) AS number",
            topic_id=key[0],
            ended=ENDED,
        )
        await sequencer.database.run(
            "DELETE FROM transaction_partitions WHERE producer_id < %(ended)s", ended=ENDED
        )
        after = await _pages_of_an_end(sequencer, key)

    assert after <= before + FEW_PAGES, (before, after)
