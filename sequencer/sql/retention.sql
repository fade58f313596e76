-- Retention: finds what is old or too much, moves the log start, drops the runs below it, and sweeps deleted
-- topics.

-- name: page
-- Of the next live partitions in primary-key order: those whose oldest run may have to go, and the last one,
-- after which the next page begins. A run's age is its own maximum timestamp, but never later than its
-- commit: one timestamp from the future must not keep everything behind it. Without timestamps it is the
-- commit's time. A limit that is not written in plain digits is left to the caller. There is none without
-- delete in the cleanup policy. Where the log begins in history, no run is the oldest (history_log.sql).
WITH page AS (
    SELECT topic_id, partition, log_start_offset, local_start_offset, high_watermark, size_bytes
    FROM partitions
    WHERE (topic_id, partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer) AND state = 'live'
    ORDER BY topic_id, partition LIMIT %(cap)s
)
SELECT p.topic_id, p.partition, t.config, p.log_start_offset, p.high_watermark, p.size_bytes,
    now.ms AS now_ms,
    oldest.last_offset AS oldest_last_offset, oldest.length AS oldest_length,
    oldest.aged_from_ms AS oldest_aged_from_ms,
    (SELECT count(*) FROM page) AS looked_at
FROM page AS p JOIN topics AS t USING (topic_id)
CROSS JOIN LATERAL (
    SELECT coalesce(t.config ->> 'retention.ms', %(retention_ms)s) AS ms,
        coalesce(t.config ->> 'retention.bytes', %(retention_bytes)s) AS bytes,
        coalesce(t.config ->> 'cleanup.policy' ~ 'delete', true) AS applies
) AS given
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT given.applies THEN -1
            WHEN given.ms ~ '^-?[0-9]{1,18}$' THEN given.ms::bigint ELSE 0 END AS ms,
        CASE WHEN NOT given.applies THEN -1
            WHEN given.bytes ~ '^-?[0-9]{1,18}$' THEN given.bytes::bigint ELSE 0 END AS bytes
) AS retention
CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms) AS now
LEFT JOIN LATERAL (
    SELECT r.last_offset, r.length,
        CASE WHEN r.max_timestamp_ms < 0 THEN c.committed_ms
            ELSE least(r.max_timestamp_ms, c.committed_ms) END AS aged_from_ms
    FROM runs AS r JOIN segments AS s USING (segment_id)
    CROSS JOIN LATERAL (SELECT (extract(epoch FROM s.committed_at) * 1000)::bigint AS committed_ms) AS c
    WHERE r.topic_id = p.topic_id AND r.partition = p.partition
    ORDER BY r.base_offset LIMIT 1
) AS oldest ON p.local_start_offset <= p.log_start_offset
WHERE oldest.last_offset < p.log_start_offset
    OR retention.ms >= 0 AND oldest.aged_from_ms < now.ms - retention.ms
    OR retention.bytes >= 0 AND p.size_bytes - oldest.length >= retention.bytes
    OR (p.topic_id, p.partition) =
        (SELECT topic_id, partition FROM page ORDER BY topic_id DESC, partition DESC LIMIT 1)
ORDER BY p.topic_id, p.partition

-- name: oldest_runs
-- At most cap runs of each partition, with its size and log start in the same snapshot. The size from an
-- earlier snapshot may count runs that are gone, and would let too many of the others go.
SELECT p.topic_id, p.partition, p.size_bytes, p.log_start_offset, oldest.last_offset, oldest.length,
    oldest.aged_from_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT r.base_offset, r.last_offset, r.length,
        CASE WHEN r.max_timestamp_ms < 0 THEN c.committed_ms
            ELSE least(r.max_timestamp_ms, c.committed_ms) END AS aged_from_ms
    FROM runs AS r JOIN segments AS s USING (segment_id)
    CROSS JOIN LATERAL (SELECT (extract(epoch FROM s.committed_at) * 1000)::bigint AS committed_ms) AS c
    WHERE r.topic_id = p.topic_id AND r.partition = p.partition
    ORDER BY r.base_offset LIMIT %(cap)s
) AS oldest
ORDER BY p.topic_id, p.partition, oldest.base_offset

-- name: lock_partitions
-- Moving log_start_offset or deleting runs needs the lock of the partition's row. Rows are locked in the same
-- order as in commits. The next statements take their snapshot after this one has all locks.
SELECT p.topic_id, p.partition, p.log_start_offset, p.high_watermark
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
WHERE p.state = 'live'
ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p

-- name: history_limits
-- Once a topic's history is on, records that are not in it yet stay. Turning it on locks the partition rows,
-- so it is seen here or waits. A partition of a compacted topic whose log begins in history has no table.
SELECT d.topic_id, d.partition, coalesce(h.compacted_to, 0) AS compacted_to
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
JOIN history_tables AS t USING (topic_id)
JOIN topics USING (topic_id)
JOIN partitions AS p ON p.topic_id = d.topic_id AND p.partition = d.partition
LEFT JOIN history_partitions AS h ON h.topic_id = d.topic_id AND h.partition = d.partition
WHERE t.published_at IS NOT NULL AND topics.config ->> 'tidelog.history' IS DISTINCT FROM 'off'
    AND ((topics.config ->> 'cleanup.policy' ~ 'compact') IS NOT TRUE
        OR p.local_start_offset <= p.log_start_offset)

-- name: move_log_starts
-- Only forward. Agents with cached coordinates see the epoch change.
UPDATE partitions AS p SET log_start_offset = d.log_start_offset, coordinate_epoch = p.coordinate_epoch + 1
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(log_starts)s::bigint[]) AS d (topic_id,
    partition, log_start_offset)
WHERE p.topic_id = d.topic_id AND p.partition = d.partition AND p.log_start_offset < d.log_start_offset

-- name: note_deleted
-- Retention drops these records from the log alone. Who deletes records means all copies.
UPDATE partitions SET deleted_to = greatest(deleted_to, %(deleted_to)s)
WHERE topic_id = %(topic_id)s AND partition = %(partition)s

-- name: drop_runs
-- At most cap runs of each partition that are below the log start as a whole, oldest first, and the
-- partitions' sizes. The oldest bytes are the clean ones of a compacted topic.
-- Nothing else changes these rows: that needs the lock of the partition's row.
WITH below AS (
    SELECT oldest.row
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
    JOIN partitions AS p USING (topic_id, partition)
    CROSS JOIN LATERAL (
        SELECT r.ctid AS row FROM runs AS r
        WHERE r.topic_id = p.topic_id AND r.partition = p.partition
            AND r.base_offset < p.log_start_offset AND r.last_offset < p.log_start_offset
        ORDER BY r.base_offset LIMIT %(cap)s
    ) AS oldest
), dropped AS (
    DELETE FROM runs AS r USING below
    WHERE r.ctid = below.row
    RETURNING r.topic_id, r.partition, r.length
), total AS (
    SELECT topic_id, partition, count(*) AS runs, sum(length)::bigint AS bytes FROM dropped
    GROUP BY topic_id, partition
), smaller AS (
    UPDATE partitions AS p SET size_bytes = p.size_bytes - total.bytes FROM total
    WHERE p.topic_id = total.topic_id AND p.partition = total.partition
), cleaned AS MATERIALIZED (
    SELECT c.topic_id, c.partition, total.bytes FROM total JOIN cleanings AS c USING (topic_id, partition)
    ORDER BY c.topic_id, c.partition FOR NO KEY UPDATE OF c
), less_clean AS (
    UPDATE cleanings AS c SET clean_bytes = greatest(0, c.clean_bytes - cleaned.bytes) FROM cleaned
    WHERE c.topic_id = cleaned.topic_id AND c.partition = cleaned.partition
)
SELECT topic_id, partition, runs, bytes FROM total

-- name: lock_deleting_partitions
-- Several housekeepers may run this at once. The state was set under this lock, so no commit can add a run
-- any more.
SELECT p.topic_id, p.partition
FROM topics AS t JOIN partitions AS p USING (topic_id)
WHERE t.deleted_at IS NOT NULL AND p.state = 'deleting'
ORDER BY p.topic_id, p.partition LIMIT %(cap)s
FOR NO KEY UPDATE OF p SKIP LOCKED

-- name: sweep_runs
WITH swept AS (
    SELECT r.topic_id, r.partition, r.base_offset
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
    JOIN runs AS r USING (topic_id, partition)
    ORDER BY r.topic_id, r.partition, r.base_offset LIMIT %(cap)s
), gone AS (
    DELETE FROM runs AS r USING swept
    WHERE r.topic_id = swept.topic_id AND r.partition = swept.partition AND r.base_offset = swept.base_offset
    RETURNING 1
)
SELECT count(*) AS deleted FROM gone

-- name: sweep_producer_state
WITH swept AS (
    SELECT s.topic_id, s.partition, s.producer_id
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
    JOIN producer_state AS s USING (topic_id, partition)
    ORDER BY s.topic_id, s.partition, s.producer_id LIMIT %(cap)s
), gone AS (
    DELETE FROM producer_state AS s USING swept
    WHERE s.topic_id = swept.topic_id AND s.partition = swept.partition AND s.producer_id = swept.producer_id
    RETURNING 1
)
SELECT count(*) AS deleted FROM gone

-- name: sweep_partitions
-- The row goes when nothing is left that needs it.
WITH gone AS (
    DELETE FROM partitions AS p
    USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
    WHERE p.topic_id = d.topic_id AND p.partition = d.partition AND p.state = 'deleting'
        AND NOT EXISTS (SELECT FROM runs AS r WHERE r.topic_id = p.topic_id AND r.partition = p.partition)
        AND NOT EXISTS (SELECT FROM producer_state AS s
            WHERE s.topic_id = p.topic_id AND s.partition = p.partition)
    RETURNING p.topic_id, p.partition
), forgotten AS (
    DELETE FROM cleanings AS c USING gone WHERE c.topic_id = gone.topic_id AND c.partition = gone.partition
)
SELECT count(*) AS deleted FROM gone

-- name: sweep_topics
-- Without partitions, and without a history that still has to be dropped.
WITH empty AS (
    SELECT t.topic_id FROM topics AS t
    WHERE t.deleted_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = t.topic_id)
        AND NOT EXISTS (SELECT FROM history_tables AS h WHERE h.topic_id = t.topic_id)
    ORDER BY t.topic_id LIMIT %(cap)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM topics AS t USING empty WHERE t.topic_id = empty.topic_id RETURNING 1
)
SELECT count(*) AS deleted FROM gone
