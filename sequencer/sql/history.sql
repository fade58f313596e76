-- History: the Iceberg tables' pointers, their jobs, and what the garbage collector may take.
--
-- Lock order (docs/design/commit.md#lock-order): history_tables ranks with topics; then segments by id, partitions,
-- history_partitions, each in key order.

-- name: has_work
-- True if a live topic has committed records after its history. Reads only the log's ends.
SELECT EXISTS (
    SELECT FROM partitions AS p
    LEFT JOIN history_partitions AS h USING (topic_id, partition)
    WHERE p.topic_id = %(topic_id)s AND p.state = 'live'
        AND p.high_watermark > greatest(h.compacted_to, p.log_start_offset)
) AS has_work

-- name: lock_partitions
-- Turning history on must not race with retention, which locks the partition row: from here on retention sees
-- the history's rows.
SELECT partition FROM partitions WHERE topic_id = %(topic_id)s AND state = 'live'
ORDER BY topic_id, partition FOR NO KEY UPDATE

-- name: turn_on_table
INSERT INTO history_tables (topic_id)
SELECT topic_id FROM topics WHERE topic_id = %(topic_id)s AND deleted_at IS NULL
ON CONFLICT DO NOTHING

-- name: turn_on_partitions
-- Also for partitions that were added since.
INSERT INTO history_partitions (topic_id, partition, compacted_to)
SELECT topic_id, partition, log_start_offset FROM partitions WHERE topic_id = %(topic_id)s AND state = 'live'
ORDER BY topic_id, partition
ON CONFLICT DO NOTHING

-- name: lock_table
SELECT metadata_key, version FROM history_tables WHERE topic_id = %(topic_id)s FOR NO KEY UPDATE

-- name: abandon_expired
-- A killed job keeps others off its topic only until its lease ends.
UPDATE history_jobs SET state = 'abandoned', ended_at = clock_timestamp()
WHERE topic_id = %(topic_id)s AND state = 'running' AND lease_until <= clock_timestamp()
RETURNING job_id

-- name: running_job
SELECT lease_until FROM history_jobs WHERE topic_id = %(topic_id)s AND state = 'running'

-- name: insert_job
INSERT INTO history_jobs (job_id, topic_id, kind, prefix, lease_until)
VALUES (%(job_id)s, %(topic_id)s, %(kind)s, %(prefix)s,
    clock_timestamp() + make_interval(secs => %(lease_s)s))

-- name: runs_to_compact
-- Each partition's runs from the end of its history up to the high watermark (the last stable offset, while
-- no topic has transactions). A run may begin before from_offset: DeleteRecords moves the log start into a
-- run.
SELECT r.partition, greatest(h.compacted_to, p.log_start_offset) AS from_offset, r.base_offset, r.last_offset,
    r.segment_id, s.object_key,
    r.position, r.length
FROM history_partitions AS h
JOIN partitions AS p USING (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT * FROM (
        -- The run that holds from_offset, found from its side of the index.
        (SELECT * FROM runs WHERE topic_id = h.topic_id AND partition = h.partition
            AND base_offset < greatest(h.compacted_to, p.log_start_offset)
        ORDER BY base_offset DESC LIMIT 1)
        UNION ALL
        (SELECT * FROM runs WHERE topic_id = h.topic_id AND partition = h.partition
            AND base_offset >= greatest(h.compacted_to, p.log_start_offset)
        ORDER BY base_offset LIMIT %(runs_per_partition)s)
    ) AS near
    WHERE near.last_offset >= greatest(h.compacted_to, p.log_start_offset)
        AND near.last_offset < p.high_watermark
) AS r
JOIN segments AS s ON s.segment_id = r.segment_id
WHERE h.topic_id = %(topic_id)s AND p.state = 'live'
ORDER BY r.partition, r.base_offset

-- name: lock_segments
-- Shared: dooming locks the row exclusively. So either it sees the holds, or this finds the segment doomed.
SELECT segment_id FROM segments WHERE segment_id = ANY(%(segment_ids)s) AND state = 'committed'
ORDER BY segment_id FOR SHARE

-- name: hold_segments
INSERT INTO holds (segment_id, job_id, lease_until)
SELECT segment_id, %(job_id)s, clock_timestamp() + make_interval(secs => %(lease_s)s)
FROM unnest(%(segment_ids)s::uuid[]) AS held (segment_id)

-- name: renew_job
UPDATE history_jobs SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE job_id = %(job_id)s AND state = 'running' AND lease_until > clock_timestamp()
RETURNING job_id

-- name: renew_holds
UPDATE holds SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE job_id = %(job_id)s

-- name: lock_job
SELECT state, lease_until > clock_timestamp() AS held FROM history_jobs
WHERE job_id = %(job_id)s FOR NO KEY UPDATE

-- name: lock_history_partitions
SELECT partition FROM history_partitions WHERE topic_id = %(topic_id)s
ORDER BY topic_id, partition FOR NO KEY UPDATE

-- name: advance_partitions
-- Each only from the plan's beginning: a range is published once.
UPDATE history_partitions AS h SET compacted_to = advance.compacted_to
FROM unnest(%(partitions)s::integer[], %(from_offsets)s::bigint[], %(to_offsets)s::bigint[])
    AS advance (partition, planned_from, compacted_to)
WHERE h.topic_id = %(topic_id)s AND h.partition = advance.partition AND h.compacted_to <= advance.planned_from
    AND advance.compacted_to > h.compacted_to
RETURNING h.partition

-- name: insert_objects
INSERT INTO history_objects (object_key, topic_id, written_at)
SELECT object_key, %(topic_id)s, coalesce(written_at, clock_timestamp())
FROM unnest(%(object_keys)s::text[], %(written_ats)s::timestamptz[]) AS added (object_key, written_at)

-- name: unreference_objects
UPDATE history_objects SET unreferenced_since = clock_timestamp()
WHERE topic_id = %(topic_id)s AND object_key = ANY(%(object_keys)s) AND unreferenced_since IS NULL

-- name: insert_raw_ranges
INSERT INTO history_raw_ranges (topic_id, partition, base_offset, last_offset, reason)
SELECT %(topic_id)s, *
FROM unnest(%(partitions)s::integer[], %(base_offsets)s::bigint[], %(last_offsets)s::bigint[],
    %(reasons)s::text[])

-- name: move_pointer
UPDATE history_tables
SET metadata_key = %(metadata_key)s, version = version + 1, published_at = clock_timestamp()
WHERE topic_id = %(topic_id)s AND version = %(version)s
RETURNING version

-- name: end_job
UPDATE history_jobs SET state = %(state)s, ended_at = clock_timestamp()
WHERE job_id = %(job_id)s AND state = 'running'

-- name: release_holds
DELETE FROM holds WHERE job_id = ANY(%(job_ids)s)

-- name: compacted_to
-- For every live partition of the given topics with history. A partition that was added since the last
-- compaction counts from 0.
SELECT t.topic_id, p.partition, coalesce(h.compacted_to, 0) AS compacted_to
FROM history_tables AS t
JOIN partitions AS p ON p.topic_id = t.topic_id AND p.state = 'live'
LEFT JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
WHERE t.topic_id = ANY(%(topic_ids)s)

-- name: tables
SELECT t.topic_id, t.name, t.config, h.metadata_key, h.version
FROM history_tables AS h JOIN topics AS t USING (topic_id)
WHERE t.deleted_at IS NULL AND h.metadata_key IS NOT NULL
ORDER BY t.name

-- name: table_by_name
SELECT t.topic_id, t.name, t.config, h.metadata_key, h.version
FROM topics AS t LEFT JOIN history_tables AS h USING (topic_id)
WHERE t.deleted_at IS NULL AND t.name = %(name)s

-- name: raw_ranges
SELECT partition, base_offset, last_offset, reason FROM history_raw_ranges
WHERE topic_id = %(topic_id)s ORDER BY partition, base_offset

-- name: live_objects
SELECT object_key, written_at FROM history_objects
WHERE topic_id = %(topic_id)s AND unreferenced_since IS NULL

-- name: dropped_tables
-- Histories whose topic was deleted.
SELECT h.topic_id FROM history_tables AS h LEFT JOIN topics AS t USING (topic_id)
WHERE t.topic_id IS NULL OR t.deleted_at IS NOT NULL
ORDER BY h.topic_id LIMIT %(cap)s

-- name: abandon_jobs_of
UPDATE history_jobs SET state = 'abandoned', ended_at = clock_timestamp()
WHERE topic_id = %(topic_id)s AND state = 'running'
RETURNING job_id

-- name: unreference_all_objects
UPDATE history_objects SET unreferenced_since = clock_timestamp()
WHERE topic_id = %(topic_id)s AND unreferenced_since IS NULL

-- name: delete_partitions_of
DELETE FROM history_partitions WHERE topic_id = %(topic_id)s

-- name: delete_raw_ranges_of
DELETE FROM history_raw_ranges WHERE topic_id = %(topic_id)s

-- name: delete_table
DELETE FROM history_tables WHERE topic_id = %(topic_id)s

-- name: abandon_all_expired
-- So that the prefixes of killed jobs are swept even if their topic is never compacted again.
WITH expired AS (
    SELECT job_id FROM history_jobs WHERE state = 'running' AND lease_until <= clock_timestamp()
    ORDER BY job_id LIMIT %(cap)s FOR NO KEY UPDATE SKIP LOCKED)
UPDATE history_jobs AS j SET state = 'abandoned', ended_at = clock_timestamp() FROM expired
WHERE j.job_id = expired.job_id
RETURNING j.job_id

-- name: ended_jobs
SELECT job_id, prefix FROM history_jobs
WHERE state <> 'running' AND ended_at < clock_timestamp() - make_interval(secs => %(older_than_s)s)
ORDER BY ended_at LIMIT %(cap)s

-- name: forget_jobs
DELETE FROM history_jobs WHERE job_id = ANY(%(job_ids)s) AND state <> 'running'

-- name: unforgotten_prefixes
SELECT prefix FROM history_jobs ORDER BY prefix

-- name: recorded
SELECT object_key FROM history_objects WHERE object_key = ANY(%(object_keys)s)

-- name: garbage
SELECT object_key FROM history_objects
WHERE unreferenced_since < clock_timestamp() - make_interval(secs => %(grace_s)s)
ORDER BY unreferenced_since LIMIT %(cap)s

-- name: forget_objects
DELETE FROM history_objects WHERE object_key = ANY(%(object_keys)s) AND unreferenced_since IS NOT NULL
