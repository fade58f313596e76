-- What the doctor reads: the whole database in pages, one statement per page, so that each page is from one
-- moment.

-- name: segments_by_id
SELECT segment_id, object_key, state, false AS is_tombstone,
    EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id) AS has_runs
FROM segments AS s WHERE segment_id = ANY(%(segment_ids)s::uuid[])
UNION ALL
-- A segment's row overrules its tombstone.
SELECT segment_id, object_key, 'doomed', true,
    EXISTS (SELECT FROM runs AS r WHERE r.segment_id = t.segment_id)
FROM tombstones AS t
WHERE segment_id = ANY(%(segment_ids)s::uuid[])
    AND NOT EXISTS (SELECT FROM segments AS s WHERE s.segment_id = t.segment_id)

-- name: referenced_segments
-- A page of segment rows in id order: those that runs refer to.
SELECT segment_id, object_key, size_bytes FROM segments AS s
WHERE segment_id > %(after)s::uuid AND EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)
ORDER BY segment_id LIMIT %(cap)s

-- name: runs_of_segments
SELECT topic_id, partition, base_offset, last_offset, segment_id, position, length
FROM runs WHERE segment_id = ANY(%(segment_ids)s::uuid[])
ORDER BY segment_id, position

-- name: live_partitions
SELECT topic_id, partition FROM partitions
WHERE (topic_id, partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer) AND state = 'live'
ORDER BY topic_id, partition LIMIT %(cap)s

-- name: log_chunk
-- Runs from an offset on, with the partition's bounds of the same moment. One row of nulls if there are none.
-- Below the local start no run is needed.
SELECT greatest(p.log_start_offset, p.local_start_offset) AS log_start_offset, p.high_watermark,
    p.size_bytes, r.base_offset, r.last_offset, r.length,
    r.segment_id, s.state AS segment_state
FROM partitions AS p
LEFT JOIN LATERAL (
    SELECT * FROM runs
    WHERE topic_id = p.topic_id AND partition = p.partition AND base_offset >= %(from_offset)s
    ORDER BY base_offset LIMIT %(cap)s
) AS r ON true
LEFT JOIN segments AS s ON s.segment_id = r.segment_id
WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND p.state = 'live'
ORDER BY r.base_offset

-- name: runs_without_partition
-- The partitions that have runs, found by skipping through the primary key.
WITH RECURSIVE pairs AS (
    (SELECT topic_id, partition FROM runs ORDER BY topic_id, partition LIMIT 1)
    UNION ALL
    SELECT following.* FROM pairs CROSS JOIN LATERAL (
        SELECT r.topic_id, r.partition FROM runs AS r
        WHERE (r.topic_id, r.partition) > (pairs.topic_id, pairs.partition)
        ORDER BY r.topic_id, r.partition LIMIT 1) AS following
)
SELECT topic_id, partition FROM pairs
WHERE NOT EXISTS (SELECT FROM partitions AS p
    WHERE p.topic_id = pairs.topic_id AND p.partition = pairs.partition)
ORDER BY topic_id, partition LIMIT %(cap)s

-- name: odd_producer_states
-- One to ten batches, each with its offset and time. Offsets rise and are below the high watermark. The
-- partition exists.
SELECT s.topic_id, s.partition, s.producer_id
FROM producer_state AS s LEFT JOIN partitions AS p USING (topic_id, partition)
WHERE p.topic_id IS NULL
    OR s.producer_epoch < 0
    OR cardinality(s.sequences) NOT BETWEEN 1 AND 10
    OR cardinality(s.base_offsets) <> cardinality(s.sequences)
    OR cardinality(s.max_timestamps) <> cardinality(s.sequences)
    OR EXISTS (
        SELECT FROM unnest(s.base_offsets) WITH ORDINALITY AS known (base_offset, place)
        WHERE known.base_offset < 0 OR known.base_offset >= p.high_watermark
            OR known.base_offset <= s.base_offsets[known.place - 1])
    OR EXISTS (SELECT FROM unnest(s.sequences) AS known (sequence) WHERE known.sequence < 0)
ORDER BY s.topic_id, s.partition, s.producer_id LIMIT %(cap)s
