-- name: new_producer_id
SELECT new_producer_id() AS producer_id

-- name: expire_producer_state
-- A page of :cap rows in key order, so that no step reads more. updated_at has no index, because every commit
-- changes it. The partition rows come first in the lock order; one that a commit holds is skipped until the
-- next round. A row that was updated meanwhile is seen as it is now, and stays. What is forgotten is noted
-- under the same locks, so that no commit misses it.
WITH cutoff AS MATERIALIZED (
    SELECT clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision) AS at
), looked AS MATERIALIZED (
    SELECT topic_id, partition, producer_id, updated_at FROM producer_state
    WHERE (topic_id, partition, producer_id)
        > (%(after_topic_id)s::uuid, %(after_partition)s::integer, %(after_producer_id)s::bigint)
    ORDER BY topic_id, partition, producer_id LIMIT %(cap)s::integer
), locked AS MATERIALIZED (
    SELECT topic_id, partition FROM partitions
    WHERE (topic_id, partition) IN (
        SELECT topic_id, partition FROM looked
        WHERE updated_at < (SELECT at FROM cutoff))
    ORDER BY topic_id, partition FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
    DELETE FROM producer_state AS gone USING looked JOIN locked USING (topic_id, partition)
    WHERE gone.topic_id = looked.topic_id AND gone.partition = looked.partition
        AND gone.producer_id = looked.producer_id
      AND gone.updated_at < (SELECT at FROM cutoff)
    RETURNING 1
), noted AS (
    UPDATE producer_ids SET forgotten_before = greatest(forgotten_before, (SELECT at FROM cutoff))
    WHERE EXISTS (SELECT FROM expired)
)
SELECT (SELECT count(*) FROM looked) AS looked_at, (SELECT count(*) FROM expired) AS expired,
       last.topic_id, last.partition, last.producer_id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT topic_id, partition, producer_id FROM looked
    ORDER BY topic_id DESC, partition DESC, producer_id DESC LIMIT 1
) AS last ON true
