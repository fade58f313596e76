-- Garbage, found by state (docs/design/garbage.md#when-an-object-may-be-deleted): committed -> unreferenced
-- -> doomed -> deleted (a tombstone) -> deleted again and forgotten. Tombstones and outcomes have their own
-- tables, whose partitions are dropped as a whole (schema.sql). Every step may be repeated after a crash, and
-- several may run at once: locks are taken with SKIP LOCKED, so no step waits. statement_timestamp() says
-- what is due, because an index can use it (clock_timestamp() is volatile).

-- name: watch_database
-- Finds out which Postgres this is, and how long ago the last check was. The row stays locked until the
-- dooming that it allows is committed. The WAL file's name begins with the timeline; the control file's own
-- copy lags behind a promotion.
WITH look AS (
    SELECT system_identifier,
        ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline
    FROM pg_control_system()
)
INSERT INTO dooming AS d (system_identifier, timeline, last_seen_at, paused_until, pause_reason)
SELECT system_identifier, timeline, clock_timestamp(), clock_timestamp() + make_interval(secs => %(lease_s)s),
    'start' FROM look
ON CONFLICT (only_row) DO UPDATE SET
    system_identifier = excluded.system_identifier,
    timeline = excluded.timeline,
    last_seen_at = excluded.last_seen_at,
    (paused_until, pause_reason) = (
        SELECT greatest(d.paused_until, pause.until), CASE WHEN pause.until > d.paused_until THEN pause.reason
            ELSE d.pause_reason END
        FROM (SELECT
            CASE
                WHEN moved.database THEN clock_timestamp() + make_interval(secs => %(failover_hold_s)s)
                WHEN %(outage_seen)s OR d.last_seen_at < clock_timestamp()
                    - make_interval(secs => %(outage_after_s)s)
                    THEN clock_timestamp() + make_interval(secs => %(lease_s)s)
            END AS until,
            CASE WHEN moved.database THEN 'failover' ELSE 'outage' END AS reason
            FROM (SELECT (d.system_identifier, d.timeline) <> (excluded.system_identifier,
                excluded.timeline)) AS moved (database)
        ) AS pause)
RETURNING greatest(0, extract(epoch FROM d.paused_until - clock_timestamp()))::float8 AS pause_s,
    d.pause_reason

-- name: mark_unreferenced
-- One page of all segments in id order. Committed segments that nothing refers to start their grace period.
-- This is a hint, judged again when the period is over.
-- Markers of transactions are not in the bucket: a row that no run names is all that is left, and goes at
-- once. No run can come to name it again.
WITH page AS MATERIALIZED (
    SELECT segment_id, state = 'committed' AND unreferenced_since IS NULL AS may_be_garbage,
        writer = 'transaction' AS is_marker
    FROM segments WHERE segment_id > %(after)s::uuid ORDER BY segment_id LIMIT %(cap)s
), unreferenced AS (
    SELECT s.segment_id FROM page JOIN segments AS s USING (segment_id)
    WHERE page.may_be_garbage AND NOT page.is_marker
        AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)
        AND NOT EXISTS (SELECT FROM holds AS h
            WHERE h.segment_id = s.segment_id AND h.lease_until > clock_timestamp())
    ORDER BY s.segment_id FOR NO KEY UPDATE OF s SKIP LOCKED
), marked AS (
    UPDATE segments AS s SET unreferenced_since = clock_timestamp() FROM unreferenced
    WHERE s.segment_id = unreferenced.segment_id AND s.state = 'committed'
    RETURNING 1
), forgotten AS (
    DELETE FROM segments AS s USING page
    WHERE page.is_marker AND s.segment_id = page.segment_id
        AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)
)
SELECT (SELECT count(*) FROM page) AS seen,
    (SELECT segment_id FROM page ORDER BY segment_id DESC LIMIT 1) AS last_seen,
    (SELECT count(*) FROM marked) AS marked

-- name: lock_unreferenced
-- The journal's last checkpoint refers to nothing that was unreferenced before its snapshot. What was
-- unreferenced before an erasure may hold erased records: it waits for readers alone.
SELECT segment_id FROM segments
WHERE state = 'committed' AND unreferenced_since < least(
    greatest(
        statement_timestamp() - make_interval(secs => %(grace_s)s),
        least(statement_timestamp() - make_interval(secs => %(erased_grace_s)s),
            (SELECT garbage_before FROM erasures))),
    CASE WHEN %(after_checkpoint)s THEN (SELECT checkpoint_at FROM journal) END)
ORDER BY unreferenced_since LIMIT %(cap)s
FOR NO KEY UPDATE SKIP LOCKED

-- name: judge_unreferenced
-- With the rows locked, in a snapshot taken afterwards: any job that publishes or holds a segment has done
-- so, or finds it doomed.
WITH judged AS (
    SELECT segment_id,
        EXISTS (SELECT FROM runs AS r WHERE r.segment_id = s.segment_id)
        OR EXISTS (SELECT FROM holds AS h
            WHERE h.segment_id = s.segment_id AND h.lease_until > clock_timestamp()) AS referenced
    FROM segments AS s WHERE segment_id = ANY(%(segment_ids)s::uuid[])
), changed AS (
    UPDATE segments AS s
    SET state = CASE WHEN referenced THEN 'committed' ELSE 'doomed' END,
        doomed_at = CASE WHEN referenced THEN NULL ELSE clock_timestamp() END,
        unreferenced_since = CASE WHEN referenced THEN NULL ELSE unreferenced_since END
    FROM judged WHERE s.segment_id = judged.segment_id
    RETURNING s.state
)
SELECT count(*) FILTER (WHERE state = 'doomed') AS doomed FROM changed

-- name: due_for_deletion
-- Once committed, a segment has waited before it was doomed. Others wait now.
SELECT segment_id, object_key FROM segments
WHERE state = 'doomed'
    AND coalesce(unreferenced_since, doomed_at) < statement_timestamp() - make_interval(secs => %(grace_s)s)
ORDER BY coalesce(unreferenced_since, doomed_at) LIMIT %(cap)s

-- name: make_partitions
SELECT add_time_partition('tombstones', %(width_s)s, %(lock_timeout_ms)s)
    AND add_time_partition('outcomes', %(width_s)s, %(lock_timeout_ms)s) AS are_made

-- name: bury
-- The tombstone stays for late PUTs. The outcome stays for agents that ask late about their commit.
SELECT bury_segments(%(segment_ids)s::uuid[], %(outcome_retention_s)s) AS buried

-- name: close_due_tombstones
-- The oldest partition whose last tombstone has waited long enough. Inserting locks the row: from here on
-- nothing is added to the partition.
UPDATE time_partitions SET is_closed = true
WHERE of_table = 'tombstones' AND number = (
    SELECT number FROM time_partitions
    WHERE of_table = 'tombstones'
        AND ends_at <= statement_timestamp() - make_interval(secs => %(late_write_window_s)s) ORDER BY number
        LIMIT 1)
RETURNING number, swept_to

-- name: tombstones_to_sweep
-- A segment's row overrules its tombstone: its object is in use again, or another step deletes it.
SELECT t.segment_id, t.object_key,
    EXISTS (SELECT FROM segments AS s WHERE s.segment_id = t.segment_id) AS is_void
FROM tombstones AS t
WHERE t.number = %(number)s
    AND t.segment_id > coalesce(%(swept_to)s::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY t.segment_id LIMIT %(cap)s

-- name: note_sweep
UPDATE time_partitions SET swept_to = %(swept_to)s WHERE of_table = 'tombstones' AND number = %(number)s

-- name: close_due_outcomes
-- Agents could not ask while Postgres was away: while dooming pauses, or without a recent check, every
-- outcome stays.
UPDATE time_partitions SET is_closed = true
WHERE of_table = 'outcomes' AND number = (
    SELECT number FROM time_partitions
    WHERE of_table = 'outcomes'
        AND ends_at <= statement_timestamp() - make_interval(secs => %(outcome_retention_s)s) ORDER BY number
        LIMIT 1)
AND EXISTS (
    SELECT FROM dooming
    WHERE paused_until <= statement_timestamp()
        AND last_seen_at > statement_timestamp() - make_interval(secs => %(outage_after_s)s))
RETURNING number

-- name: drop_partition
SELECT drop_time_partition(%(of_table)s, %(number)s, %(lock_timeout_ms)s) AS is_dropped
