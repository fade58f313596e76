-- History: the Iceberg tables' pointers, their jobs, and what the garbage collector may take.
--
-- The history of a topic that is compacted by key is its state (`is_state`): the last record of each key,
-- unless that is a tombstone. A partition whose log begins in Parquet files has none: they are its log.
--
-- Lock order (docs/design/commit.md#lock-order): history_tables ranks with topics; then segments by id,
-- partitions, history_partitions, each in key order.

-- name: ends
-- Where the stable part of a topic's log ends now: what a compaction that begins now is to reach.
SELECT partition,
    greatest(log_start_offset, coalesce(first_unstable_offset, high_watermark)) AS last_stable_offset,
    clock_timestamp() AS now
FROM partitions
WHERE topic_id = %(topic_id)s AND state = 'live'
    AND (NOT %(is_state)s::boolean OR local_start_offset <= log_start_offset)

-- name: note_complete
UPDATE history_tables SET complete_at = greatest(complete_at, %(complete_at)s) WHERE topic_id = %(topic_id)s

-- name: behind
-- The topics whose history is on and lacks stable records, with how many and since when at most.
SELECT t.topic_id, t.name, t.config, count(*) AS partitions,
    sum(s.end_offset - w.from_offset)::bigint AS records,
    sum(p.size_bytes * (s.end_offset - w.from_offset)::float8
        / greatest(p.high_watermark - p.log_start_offset, 1))::bigint AS raw_bytes,
    extract(epoch FROM clock_timestamp() - coalesce(b.complete_at, t.created_at))::float8 AS behind_s
FROM topics AS t
JOIN partitions AS p ON p.topic_id = t.topic_id AND p.state = 'live'
CROSS JOIN LATERAL (
    SELECT coalesce(p.first_unstable_offset, p.high_watermark) AS end_offset,
        coalesce(t.config ->> 'cleanup.policy' ~ 'compact', false) AS is_state
) AS s
LEFT JOIN history_tables AS b ON b.topic_id = t.topic_id
LEFT JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
LEFT JOIN cleanings AS c ON s.is_state AND c.topic_id = p.topic_id AND c.partition = p.partition
CROSS JOIN LATERAL (
    SELECT history_goes_on_at(s.is_state, p.log_start_offset, h.compacted_to, h.state_to,
        h.tombstones_gone_to, c.tombstones_gone_to) AS from_offset
) AS w
WHERE t.deleted_at IS NULL AND t.config ->> 'tidelog.history' IS DISTINCT FROM 'off'
    AND (NOT s.is_state OR p.local_start_offset <= p.log_start_offset)
    AND s.end_offset > w.from_offset
GROUP BY t.topic_id, t.name, t.config, b.complete_at, t.created_at

-- name: with_expired_files
-- The topics that have a file of which a record may have expired. Nothing expires where the cleanup policy is
-- compact alone. An empty one rules out retention.ms only.
SELECT t.topic_id, t.name, t.config FROM topics AS t
CROSS JOIN LATERAL (
    SELECT CASE WHEN t.config ->> 'cleanup.policy' ~ 'compact' AND t.config ->> 'cleanup.policy' !~ 'delete'
        THEN -1 ELSE coalesce(
            nullif((t.config ->> 'tidelog.history.retention.ms')::bigint, -2),
            CASE WHEN t.config ->> 'cleanup.policy' = '' THEN -1 END,
            (t.config ->> 'retention.ms')::bigint, %(default_retention_ms)s) END AS ms
) AS retention
WHERE t.deleted_at IS NULL
    AND (retention.ms BETWEEN 0 AND %(longest_ms)s AND EXISTS (
            SELECT FROM history_files AS f
            WHERE f.topic_id = t.topic_id
                AND f.begins_at < clock_timestamp() - make_interval(secs => retention.ms / 1000.0))
        OR EXISTS (
            SELECT FROM partitions AS p
            JOIN history_files AS f ON f.topic_id = p.topic_id AND f.partition = p.partition
            WHERE p.topic_id = t.topic_id AND p.deleted_to > 0 AND f.first_offset < p.deleted_to))

-- name: shown
-- Of each topic what its history has, and its newest job that is not forgotten.
SELECT t.topic_id, t.name, t.config, b.complete_at, b.published_at, b.waits,
    f.files, f.records, f.parquet_bytes, l.raw_bytes, l.raw_records, j.kind AS job_kind, j.state AS job_state,
    extract(epoch FROM clock_timestamp() - j.started_at)::float8 AS job_age_s,
    extract(epoch FROM coalesce(j.ended_at, clock_timestamp()) - j.started_at)::float8 AS job_took_s,
    (SELECT count(*) FROM history_raw_ranges AS r WHERE r.topic_id = t.topic_id) AS raw_ranges
FROM topics AS t
LEFT JOIN history_tables AS b USING (topic_id)
LEFT JOIN LATERAL (
    SELECT count(*) AS files, coalesce(sum(row_count), 0)::bigint AS records,
        coalesce(sum(size_bytes), 0)::bigint AS parquet_bytes
    FROM history_files AS h WHERE h.topic_id = t.topic_id
) AS f ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(size_bytes), 0)::bigint AS raw_bytes,
        coalesce(sum(high_watermark - log_start_offset), 0)::bigint AS raw_records
    FROM partitions AS p WHERE p.topic_id = t.topic_id AND p.state = 'live'
) AS l ON true
LEFT JOIN (
    SELECT DISTINCT ON (topic_id) topic_id, kind, state, started_at, ended_at FROM history_jobs
    ORDER BY topic_id, started_at DESC
) AS j USING (topic_id)
WHERE t.deleted_at IS NULL AND (%(name)s::text IS NULL OR t.name = %(name)s)
ORDER BY t.name

-- name: has_work
-- Whether a topic that is not deleted has stable records past its history, below the ends given. Reads the
-- log's ends only.
SELECT EXISTS (
    SELECT FROM unnest(%(partitions)s::integer[], %(ends)s::bigint[]) AS e (partition, end_offset)
    JOIN partitions AS p ON p.topic_id = %(topic_id)s AND p.partition = e.partition
    LEFT JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
    LEFT JOIN cleanings AS c
        ON %(is_state)s::boolean AND c.topic_id = p.topic_id AND c.partition = p.partition
    WHERE p.state = 'live'
        AND least(coalesce(p.first_unstable_offset, p.high_watermark), e.end_offset)
            > history_goes_on_at(%(is_state)s::boolean, p.log_start_offset, h.compacted_to, h.state_to,
                h.tombstones_gone_to, c.tombstones_gone_to)
) AS has_work

-- name: add_table
INSERT INTO history_tables (topic_id)
SELECT topic_id FROM topics WHERE topic_id = %(topic_id)s AND deleted_at IS NULL
ON CONFLICT DO NOTHING

-- name: table_version
SELECT metadata_key, version FROM history_tables WHERE topic_id = %(topic_id)s

-- name: lock_table
SELECT metadata_key, version FROM history_tables WHERE topic_id = %(topic_id)s FOR NO KEY UPDATE

-- name: abandon_expired
-- A killed job keeps others off its topic only until its lease ends.
UPDATE history_jobs SET state = 'abandoned', ended_at = clock_timestamp()
WHERE topic_id = %(topic_id)s AND state = 'running' AND lease_until <= clock_timestamp()
RETURNING job_id

-- name: running_job
SELECT lease_until FROM history_jobs WHERE topic_id = %(topic_id)s AND kind = %(kind)s AND state = 'running'

-- name: insert_job
INSERT INTO history_jobs (job_id, topic_id, kind, prefix, lease_until)
VALUES (%(job_id)s, %(topic_id)s, %(kind)s, %(prefix)s,
    clock_timestamp() + make_interval(secs => %(lease_s)s))

-- name: runs_to_compact
-- The runs of each partition from where its history ends to the end given, as far as they are stable. The
-- last run may go beyond that end. A run may begin before from_offset: DeleteRecords moves the log start into
-- a run, or a transaction was open in it.
--
-- `aborted` comes with the first run of a partition: the first :max_aborted aborted transactions that overlap
-- its runs, each with the last stable offset after it. It is of the same moment as the runs: later, entries
-- below a new log start are gone.
SELECT p.partition, p.from_offset, p.continues, p.seen_to, p.seen_state_to, p.seen_gone_to, p.gone_to,
    r.base_offset, r.last_offset, least(r.last_offset + 1, p.stable_offset) AS end_offset,
    r.segment_id, s.object_key, r.position, r.length, r.place,
    CASE WHEN r.place = 1 THEN (
        SELECT array_agg(ARRAY[a.last_offset, a.first_offset, a.producer_id, a.stable_offset]
            ORDER BY a.last_offset)
        FROM (
            SELECT * FROM aborted_transactions
            WHERE topic_id = %(topic_id)s AND partition = p.partition AND last_offset >= p.from_offset
                AND last_offset <= coalesce((
                    -- Later entries begin at or after this one's stable offset.
                    SELECT last_offset FROM (
                        SELECT last_offset, stable_offset FROM aborted_transactions
                        WHERE topic_id = %(topic_id)s AND partition = p.partition
                            AND last_offset >= p.from_offset
                        ORDER BY last_offset LIMIT %(max_aborted)s::integer) AS near
                    WHERE stable_offset > r.read_to LIMIT 1), 9223372036854775807)
            ORDER BY last_offset LIMIT %(max_aborted)s::integer) AS a) END AS aborted
FROM unnest(%(partitions)s::integer[], %(ends)s::bigint[]) AS e (partition, end_offset)
CROSS JOIN LATERAL (
    SELECT p.partition,
        history_goes_on_at(%(is_state)s::boolean, p.log_start_offset, h.compacted_to, h.state_to,
            h.tombstones_gone_to, c.tombstones_gone_to) AS from_offset,
        history_continues(p.log_start_offset, h.compacted_to, h.state_to, h.tombstones_gone_to,
            c.tombstones_gone_to) AS continues,
        h.compacted_to AS seen_to, h.state_to AS seen_state_to, h.tombstones_gone_to AS seen_gone_to,
        coalesce(c.tombstones_gone_to, 0) AS gone_to,
        coalesce(p.first_unstable_offset, p.high_watermark) AS stable_offset
    FROM partitions AS p
    LEFT JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
    LEFT JOIN cleanings AS c
        ON %(is_state)s::boolean AND c.topic_id = p.topic_id AND c.partition = p.partition
    WHERE p.topic_id = %(topic_id)s AND p.partition = e.partition AND p.state = 'live' OFFSET 0) AS p
CROSS JOIN LATERAL (
    SELECT *, row_number() OVER (ORDER BY base_offset) AS place, max(last_offset) OVER () AS read_to FROM (
        -- The run that holds from_offset, found from its side of the index.
        (SELECT * FROM runs WHERE topic_id = %(topic_id)s AND partition = p.partition
            AND base_offset < p.from_offset
        ORDER BY base_offset DESC LIMIT 1)
        UNION ALL
        (SELECT * FROM runs WHERE topic_id = %(topic_id)s AND partition = p.partition
            AND base_offset >= p.from_offset AND base_offset < least(e.end_offset, p.stable_offset)
        ORDER BY base_offset LIMIT %(runs_per_partition)s)
    ) AS near
    WHERE near.last_offset >= p.from_offset
) AS r
JOIN segments AS s ON s.segment_id = r.segment_id
WHERE least(p.stable_offset, e.end_offset) > p.from_offset
ORDER BY p.partition, r.base_offset

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

-- name: policy
-- Whether the topic is compacted by key now; no row if it was deleted.
SELECT coalesce(config ->> 'cleanup.policy' ~ 'compact', false) AS is_compacted FROM topics
WHERE topic_id = %(topic_id)s AND deleted_at IS NULL

-- name: lock_partitions
-- Whether Parquet is a part of each partition's log. While the lock is held, no run is dropped.
SELECT partition, local_start_offset > log_start_offset AS is_in_history FROM partitions
WHERE topic_id = %(topic_id)s AND partition = ANY(%(partitions)s::integer[])
ORDER BY partition FOR NO KEY UPDATE

-- name: advance_partitions
-- Each only from where the plan began: a range is published once. The row of a partition appears with its
-- first publish.
INSERT INTO history_partitions AS h (topic_id, partition, compacted_to)
SELECT %(topic_id)s, partition, compacted_to
FROM unnest(%(partitions)s::integer[], %(to_offsets)s::bigint[]) AS advance (partition, compacted_to)
ORDER BY partition
ON CONFLICT (topic_id, partition) DO UPDATE SET compacted_to = excluded.compacted_to
WHERE h.compacted_to < excluded.compacted_to
    AND h.compacted_to <= (
        SELECT planned.from_offset
        FROM unnest(%(partitions)s::integer[], %(from_offsets)s::bigint[]) AS planned (partition, from_offset)
        WHERE planned.partition = excluded.partition)
RETURNING h.partition

-- name: advance_states
-- As advance_partitions, for partitions whose history is their state. Each only if it is as the plan saw it.
-- Where the plan saw no row, seen_to is null, and one that is there has appeared since.
INSERT INTO history_partitions AS h (topic_id, partition, compacted_to, state_to, tombstones_gone_to)
SELECT %(topic_id)s, partition, to_offset, to_offset, gone_to
FROM unnest(%(partitions)s::integer[], %(to_offsets)s::bigint[], %(gone_to)s::bigint[])
    AS advance (partition, to_offset, gone_to)
ORDER BY partition
ON CONFLICT (topic_id, partition) DO UPDATE SET compacted_to = excluded.compacted_to,
    state_to = excluded.state_to, tombstones_gone_to = excluded.tombstones_gone_to
WHERE (h.compacted_to, h.state_to) = (
    SELECT planned.seen_to, planned.seen_state_to
    FROM unnest(%(partitions)s::integer[], %(seen_to)s::bigint[], %(seen_state_to)s::bigint[])
        AS planned (partition, seen_to, seen_state_to)
    WHERE planned.partition = excluded.partition)
RETURNING h.partition

-- name: forget_raw_ranges
-- Of partitions whose history begins again.
DELETE FROM history_raw_ranges WHERE topic_id = %(topic_id)s AND partition = ANY(%(partitions)s::integer[])

-- name: insert_files
INSERT INTO history_files (object_key, topic_id, partition, first_offset, last_offset, row_count, size_bytes,
    is_full, sequence_number, written_at, oldest, newest, has_untimed, begins_at, ends_at, row_groups)
SELECT object_key, %(topic_id)s, partition, first_offset, last_offset, row_count, size_bytes,
    is_full, %(sequence_number)s, written, oldest, newest, has_untimed,
    least(oldest, CASE WHEN has_untimed OR oldest IS NULL THEN written END),
    greatest(newest, CASE WHEN has_untimed OR newest IS NULL THEN written END),
    row_groups::bigint[]
FROM unnest(%(object_keys)s::text[], %(partitions)s::integer[], %(first_offsets)s::bigint[],
        %(last_offsets)s::bigint[], %(row_counts)s::bigint[], %(size_bytes)s::bigint[],
        %(is_full)s::boolean[], %(written_ats)s::timestamptz[], %(oldest)s::timestamptz[],
        %(newest)s::timestamptz[],
        %(has_untimed)s::boolean[], %(row_groups)s::text[])
    AS f (object_key, partition, first_offset, last_offset, row_count, size_bytes, is_full, written_at,
        oldest, newest, has_untimed, row_groups)
CROSS JOIN LATERAL (SELECT coalesce(f.written_at, clock_timestamp())) AS w (written)

-- name: delete_files
-- Of the current snapshot only: another job may have replaced or dropped one.
DELETE FROM history_files WHERE topic_id = %(topic_id)s AND object_key = ANY(%(object_keys)s)
RETURNING object_key

-- name: insert_objects
INSERT INTO history_objects (object_key, topic_id)
SELECT object_key, %(topic_id)s FROM unnest(%(object_keys)s::text[]) AS added (object_key)

-- name: let_objects_go
UPDATE history_objects SET let_go_in = %(version)s
WHERE object_key = ANY(%(object_keys)s) AND topic_id = %(topic_id)s AND let_go_in IS NULL

-- name: unreference_objects
-- No retained snapshot is older than the version given, so none names what that version or an older one let
-- go.
UPDATE history_objects SET unreferenced_since = clock_timestamp()
WHERE topic_id = %(topic_id)s AND let_go_in <= %(oldest_version)s AND unreferenced_since IS NULL

-- name: insert_raw_ranges
INSERT INTO history_raw_ranges (topic_id, partition, base_offset, last_offset, reason)
SELECT %(topic_id)s, *
FROM unnest(%(partitions)s::integer[], %(base_offsets)s::bigint[], %(last_offsets)s::bigint[],
    %(reasons)s::text[])

-- name: move_pointer
UPDATE history_tables SET metadata_key = %(metadata_key)s, version = version + 1
WHERE topic_id = %(topic_id)s AND version = %(version)s

-- name: note_publish
-- From the first on, retention waits for the history.
UPDATE history_tables SET published_at = clock_timestamp() WHERE topic_id = %(topic_id)s

-- name: note_wait
UPDATE history_tables SET waits = %(reason)s
WHERE topic_id = %(topic_id)s AND waits IS DISTINCT FROM %(reason)s

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
JOIN topics USING (topic_id)
JOIN partitions AS p ON p.topic_id = t.topic_id AND p.state = 'live'
LEFT JOIN history_partitions AS h ON h.topic_id = p.topic_id AND h.partition = p.partition
WHERE t.topic_id = ANY(%(topic_ids)s) AND t.published_at IS NOT NULL
    AND topics.config ->> 'tidelog.history' IS DISTINCT FROM 'off'
    AND ((topics.config ->> 'cleanup.policy' ~ 'compact') IS NOT TRUE
        OR p.local_start_offset <= p.log_start_offset)

-- name: catalog_tables
-- The tables that a reader can open, by the topics' names, each with the name that it has in the catalog. Of
-- topics whose names differ only in case, the oldest with a table keeps its name.
SELECT t.topic_id, t.name AS topic_name, shown.name, t.config, h.metadata_key
FROM topics AS t JOIN history_tables AS h USING (topic_id)
CROSS JOIN LATERAL (
    SELECT CASE WHEN EXISTS (
            SELECT FROM topics AS o JOIN history_tables AS b USING (topic_id)
            WHERE lower(o.name) = lower(t.name) AND o.deleted_at IS NULL AND b.metadata_key IS NOT NULL
                AND (o.created_at, o.topic_id) < (t.created_at, t.topic_id))
        THEN t.name || '__' || left(t.topic_id::text, 8) ELSE t.name END AS name
) AS shown
WHERE t.deleted_at IS NULL AND h.metadata_key IS NOT NULL AND t.name > %(after)s
ORDER BY t.name LIMIT %(cap)s

-- name: catalog_tables_of_tenant
-- The same of the topics whose names are in a range of bytes.
SELECT t.topic_id, t.name AS topic_name, shown.name, t.config, h.metadata_key
FROM topics AS t JOIN history_tables AS h USING (topic_id)
CROSS JOIN LATERAL (
    SELECT CASE WHEN EXISTS (
            SELECT FROM topics AS o JOIN history_tables AS b USING (topic_id)
            WHERE lower(o.name) = lower(t.name) AND o.deleted_at IS NULL AND b.metadata_key IS NOT NULL
                AND (o.created_at, o.topic_id) < (t.created_at, t.topic_id))
        THEN t.name || '__' || left(t.topic_id::text, 8) ELSE t.name END AS name
) AS shown
WHERE t.deleted_at IS NULL AND h.metadata_key IS NOT NULL AND strpos(t.name, '~') > 0
    AND t.name > %(after)s::text COLLATE "C" AND t.name < %(behind)s::text COLLATE "C"
ORDER BY t.name COLLATE "C" LIMIT %(cap)s

-- name: catalog_candidates
-- Topics of one of these names in any case, each with the name of its table.
SELECT t.topic_id, t.name AS topic_name, shown.name, t.config, h.metadata_key
FROM topics AS t LEFT JOIN history_tables AS h USING (topic_id)
CROSS JOIN LATERAL (
    SELECT CASE WHEN EXISTS (
            SELECT FROM topics AS o JOIN history_tables AS b USING (topic_id)
            WHERE lower(o.name) = lower(t.name) AND o.deleted_at IS NULL AND b.metadata_key IS NOT NULL
                AND (o.created_at, o.topic_id) < (t.created_at, t.topic_id))
        THEN t.name || '__' || left(t.topic_id::text, 8) ELSE t.name END AS name
) AS shown
WHERE t.deleted_at IS NULL AND lower(t.name) = ANY(%(names)s::text[])
ORDER BY t.created_at, t.topic_id

-- name: raw_ranges
SELECT partition, base_offset, last_offset, reason FROM history_raw_ranges
WHERE topic_id = %(topic_id)s ORDER BY partition, base_offset

-- name: live_objects
-- Objects that a retained snapshot may name, in pages.
SELECT object_key FROM history_objects
WHERE topic_id = %(topic_id)s AND unreferenced_since IS NULL AND object_key > %(after)s
ORDER BY object_key LIMIT %(cap)s

-- name: live_among
SELECT object_key FROM history_objects WHERE object_key = ANY(%(object_keys)s) AND unreferenced_since IS NULL

-- name: expired_files
-- Files of which every record is older than the cutoff, oldest first, and those that were deleted.
(SELECT * FROM history_files WHERE topic_id = %(topic_id)s AND ends_at < %(cutoff)s
ORDER BY ends_at, object_key LIMIT %(cap)s)
UNION
(SELECT f.* FROM partitions AS p JOIN history_files AS f USING (topic_id, partition)
WHERE p.topic_id = %(topic_id)s AND p.deleted_to > 0 AND f.first_offset < p.deleted_to
    AND f.last_offset < p.deleted_to
LIMIT %(cap)s)

-- name: partly_expired_files
(SELECT * FROM history_files
WHERE topic_id = %(topic_id)s AND begins_at < %(cutoff)s AND ends_at >= %(cutoff)s
    AND last_offset >= coalesce((
        SELECT deleted_to FROM partitions AS p
        WHERE p.topic_id = history_files.topic_id AND p.partition = history_files.partition), 0)
ORDER BY begins_at, object_key LIMIT %(cap)s)
UNION
(SELECT f.* FROM partitions AS p JOIN history_files AS f USING (topic_id, partition)
WHERE p.topic_id = %(topic_id)s AND p.deleted_to > 0 AND f.first_offset < p.deleted_to
    AND f.last_offset >= p.deleted_to AND f.ends_at >= %(cutoff)s
LIMIT %(cap)s)

-- name: deleted_to
-- Where requests deleted records.
SELECT partition, deleted_to FROM partitions WHERE topic_id = %(topic_id)s AND deleted_to > 0

-- name: files_from
-- The files of a partition's current snapshot that hold offsets from one on, in order. Files do not overlap,
-- so at most one begins before that offset.
SELECT * FROM (
    (SELECT * FROM history_files WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND first_offset < %(from_offset)s
    ORDER BY first_offset DESC LIMIT 1)
    UNION ALL
    (SELECT * FROM history_files WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND first_offset >= %(from_offset)s
    ORDER BY first_offset LIMIT %(cap)s)
) AS near
WHERE last_offset >= %(from_offset)s
ORDER BY first_offset LIMIT %(cap)s

-- name: log_files_from
-- As files_from, with the end of the partition's state. Below it, files have the last record of each key
-- alone, and no file is returned. At least one row, with nulls if there is no file.
SELECT s.state_to, f.*
FROM (SELECT coalesce((
        SELECT state_to FROM history_partitions
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s), 0) AS state_to) AS s
LEFT JOIN LATERAL (
    SELECT * FROM (
        (SELECT * FROM history_files WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND first_offset < %(from_offset)s
        ORDER BY first_offset DESC LIMIT 1)
        UNION ALL
        (SELECT * FROM history_files WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND first_offset >= %(from_offset)s
        ORDER BY first_offset LIMIT %(cap)s)
    ) AS near
    WHERE last_offset >= %(from_offset)s AND %(from_offset)s >= s.state_to
    ORDER BY first_offset LIMIT %(cap)s
) AS f ON true
ORDER BY f.first_offset

-- name: first_offsets
-- Where the history of each partition begins; a partition without files is left out.
SELECT asked.partition, f.first_offset
FROM unnest(%(partitions)s::integer[]) AS asked (partition)
CROSS JOIN LATERAL (
    SELECT first_offset FROM history_files
    WHERE topic_id = %(topic_id)s AND partition = asked.partition
    ORDER BY first_offset LIMIT 1) AS f

-- name: small_files
-- In the order of their offsets, from a partition on. Between one and the file before it may lie a full one.
SELECT small.*, EXISTS (
        SELECT FROM history_files AS f
        WHERE f.topic_id = %(topic_id)s AND f.partition = small.partition
            AND f.first_offset > small.previous AND f.first_offset < small.first_offset
    ) AS follows_full
FROM (
    SELECT *, lag(last_offset) OVER (PARTITION BY partition ORDER BY first_offset) AS previous
    FROM (
        SELECT * FROM history_files
        WHERE topic_id = %(topic_id)s AND NOT is_full AND partition >= %(from_partition)s
        ORDER BY partition, first_offset LIMIT %(cap)s
    ) AS page
) AS small
ORDER BY small.partition, small.first_offset

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

-- name: delete_files_of
DELETE FROM history_files WHERE topic_id = %(topic_id)s

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

-- name: erased_garbage
SELECT object_key FROM history_objects
WHERE is_erased AND unreferenced_since < least(
    statement_timestamp() - make_interval(secs => %(grace_s)s),
    CASE WHEN %(after_checkpoint)s THEN (SELECT checkpoint_at FROM journal) END)
ORDER BY unreferenced_since LIMIT %(cap)s

-- name: forget_objects
DELETE FROM history_objects WHERE object_key = ANY(%(object_keys)s) AND unreferenced_since IS NOT NULL
