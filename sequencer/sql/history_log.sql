-- Where Parquet is the log (docs/design/history.md#parquet-is-the-log): drops raw runs that are in history,
-- and finds log starts that lie in history.

-- name: to_shorten
-- The next partitions, in primary-key order, of topics whose log is their history.
SELECT p.topic_id, p.partition, t.config, p.size_bytes, h.compacted_to,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM topics AS t
JOIN history_tables AS b ON b.topic_id = t.topic_id AND b.published_at IS NOT NULL
JOIN partitions AS p ON p.topic_id = t.topic_id AND p.state = 'live'
JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
WHERE t.deleted_at IS NULL
    AND (t.config ->> 'tidelog.history' = 'log'
        OR t.config ->> 'remote.storage.enable' = 'true'
            AND t.config ->> 'tidelog.history' IS DISTINCT FROM 'off')
    AND (t.config ->> 'cleanup.policy' ~ 'compact') IS NOT TRUE
    AND h.compacted_to > p.local_start_offset
    AND (p.topic_id, p.partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer)
ORDER BY p.topic_id, p.partition LIMIT %(cap)s

-- name: oldest_local_runs
-- The first runs past each local start that are wholly in history, and whether they stay: some of a run did
-- not decode, or of its offsets history has the last record of each key alone.
-- A run's age is that of retention (retention.sql).
SELECT d.topic_id, d.partition, r.base_offset, r.last_offset, r.length,
    CASE WHEN r.max_timestamp_ms < 0 THEN c.committed_ms
        ELSE least(r.max_timestamp_ms, c.committed_ms) END AS aged_from_ms,
    r.base_offset < h.state_to OR EXISTS (
        SELECT FROM history_raw_ranges AS w
        WHERE w.topic_id = d.topic_id AND w.partition = d.partition
            AND w.base_offset <= r.last_offset AND w.last_offset >= r.base_offset
    ) AS stays_raw
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
JOIN history_partitions AS h USING (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT * FROM runs
    WHERE topic_id = d.topic_id AND partition = d.partition AND base_offset >= p.local_start_offset
    ORDER BY base_offset LIMIT %(cap)s
) AS r
JOIN segments AS s ON s.segment_id = r.segment_id
CROSS JOIN LATERAL (SELECT (extract(epoch FROM s.committed_at) * 1000)::bigint AS committed_ms) AS c
WHERE r.last_offset < h.compacted_to
ORDER BY d.topic_id, d.partition, r.base_offset

-- name: lock_partitions
SELECT p.topic_id, p.partition
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
WHERE p.state = 'live'
ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p

-- name: drop_local_runs
-- Those of the runs that are there as they were read: a merge may have come first. Agents that know a dropped
-- run read on in its object, which stays for the grace period.
--
-- Of a partition only if its history still has all records up to the new local start. Since it was read, the
-- topic may have been compacted by key, and its history may have become its state.
WITH wanted AS MATERIALIZED (
    SELECT m.topic_id, m.partition, m.local_start, h.state_to, h.compacted_to
    FROM unnest(%(moved_topic_ids)s::uuid[], %(moved_partitions)s::integer[], %(local_starts)s::bigint[])
        AS m (topic_id, partition, local_start)
    JOIN topics AS t USING (topic_id)
    JOIN history_partitions AS h USING (topic_id, partition)
    WHERE (t.config ->> 'cleanup.policy' ~ 'compact') IS NOT TRUE AND m.local_start <= h.compacted_to
), dropped AS (
    DELETE FROM runs AS r
    USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[],
        %(last_offsets)s::bigint[]) AS d (topic_id, partition, base_offset, last_offset)
    JOIN wanted AS w USING (topic_id, partition)
    WHERE r.topic_id = d.topic_id AND r.partition = d.partition AND r.base_offset = d.base_offset
        AND r.last_offset = d.last_offset AND d.base_offset >= w.state_to AND d.last_offset < w.compacted_to
    RETURNING r.topic_id, r.partition, r.length
), total AS (
    SELECT topic_id, partition, count(*) AS runs, sum(length)::bigint AS bytes FROM dropped
    GROUP BY topic_id, partition
), moved AS (
    UPDATE partitions AS p
    SET local_start_offset = greatest(p.local_start_offset, w.local_start),
        size_bytes = p.size_bytes - coalesce(total.bytes, 0)
    FROM wanted AS w
    LEFT JOIN total ON total.topic_id = w.topic_id AND total.partition = w.partition
    WHERE p.topic_id = w.topic_id AND p.partition = w.partition
)
SELECT coalesce(sum(runs), 0)::bigint AS runs, coalesce(sum(bytes), 0)::bigint AS bytes FROM total

-- name: begun_in_history
-- The next partitions whose log begins in history, each with its oldest files. Bytes are those of the files
-- and of the runs.
SELECT p.topic_id, p.partition, p.config, p.log_start_offset, p.local_start_offset, p.high_watermark,
    p.size_bytes + (
        SELECT coalesce(sum(f.size_bytes), 0)::bigint FROM history_files AS f
        WHERE f.topic_id = p.topic_id AND f.partition = p.partition AND f.last_offset >= p.log_start_offset
            AND f.first_offset < p.local_start_offset) AS size_bytes,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    f.last_offset, f.size_bytes AS length, (extract(epoch FROM f.ends_at) * 1000)::bigint AS aged_from_ms
FROM (
    SELECT p.*, t.config FROM partitions AS p JOIN topics AS t USING (topic_id)
    WHERE p.local_start_offset > p.log_start_offset AND p.state = 'live'
        AND (p.topic_id, p.partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer)
    ORDER BY p.topic_id, p.partition LIMIT %(cap)s
) AS p
LEFT JOIN LATERAL (
    SELECT * FROM history_files AS f
    WHERE f.topic_id = p.topic_id AND f.partition = p.partition AND f.last_offset >= p.log_start_offset
        AND f.first_offset < p.local_start_offset
    ORDER BY f.first_offset LIMIT %(files)s
) AS f ON true
ORDER BY p.topic_id, p.partition, f.first_offset
