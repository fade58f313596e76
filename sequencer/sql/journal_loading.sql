-- Loading entries of the commit journal (sequencer/journal/loading.py). `staged` is a temporary table with
-- the rows of one section.

-- name: drop_staged
DROP TABLE IF EXISTS pg_temp.staged

-- name: remove_open_transactions
DELETE FROM transaction_partitions

-- name: open_aborted_without_marker
-- An entry with the marker was lost: the transaction is to be aborted again.
INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
SELECT a.producer_id, a.topic_id, a.partition, min(a.first_offset), clock_timestamp()
FROM aborted_transactions AS a JOIN partitions AS p USING (topic_id, partition)
WHERE a.last_offset >= p.high_watermark
GROUP BY a.producer_id, a.topic_id, a.partition
ON CONFLICT (producer_id, topic_id, partition) DO UPDATE
SET first_offset = least(t.first_offset, excluded.first_offset)

-- name: remove_aborted_without_marker
DELETE FROM aborted_transactions AS a USING partitions AS p
WHERE p.topic_id = a.topic_id AND p.partition = a.partition AND a.last_offset >= p.high_watermark

-- name: add_partitions
-- New partitions begin empty, because their runs come afterwards. Known ones only take the epoch and the
-- state.
INSERT INTO partitions AS p (topic_id, partition, state, log_start_offset, high_watermark, coordinate_epoch)
SELECT topic_id, partition, state, 0, 0, coordinate_epoch FROM staged
ON CONFLICT (topic_id, partition) DO UPDATE
SET state = excluded.state, coordinate_epoch = greatest(p.coordinate_epoch, excluded.coordinate_epoch)

-- name: advance_log_starts
-- Retention, or a client, has removed records since, or runs gave way to history. Offsets below both starts
-- are no gap.
UPDATE partitions AS p
SET log_start_offset = greatest(p.log_start_offset, s.log_start_offset),
    local_start_offset = greatest(p.local_start_offset, s.local_start_offset),
    deleted_to = greatest(p.deleted_to, s.deleted_to),
    high_watermark = greatest(p.high_watermark, s.log_start_offset, s.local_start_offset),
    max_timestamp_ms = CASE
        WHEN p.high_watermark <= greatest(s.log_start_offset, s.local_start_offset)
            THEN greatest(p.max_timestamp_ms, s.max_timestamp_ms)
        ELSE p.max_timestamp_ms END
FROM staged AS s
WHERE p.topic_id = s.topic_id AND p.partition = s.partition
    AND (p.log_start_offset < s.log_start_offset OR p.local_start_offset < s.local_start_offset
        OR p.deleted_to < s.deleted_to)

-- name: remove_runs_before_log_start
DELETE FROM runs AS r USING staged AS s
WHERE r.topic_id = s.topic_id AND r.partition = s.partition AND r.last_offset < s.log_start_offset

-- name: delete_topics_of_taken_names
-- A new topic has the name of an older one, whose row was removed before any entry had its deletion.
UPDATE topics AS t SET deleted_at = s.created_at FROM staged AS s
WHERE t.name = s.name AND t.topic_id <> s.topic_id AND t.deleted_at IS NULL AND s.deleted_at IS NULL

-- name: drop_added
DROP TABLE IF EXISTS pg_temp.added

-- name: add_runs
-- Runs that reach beyond their partition's end, and whether they join it: the first begins there or before,
-- each next one where the previous one ends.
CREATE TEMP TABLE added ON COMMIT DROP AS
SELECT reaching.*, bool_and(follows) OVER (
    PARTITION BY topic_id, partition ORDER BY base_offset ROWS UNBOUNDED PRECEDING) AS joins
FROM (
    SELECT s.*, s.base_offset <= coalesce(
        lag(s.last_offset) OVER (PARTITION BY s.topic_id, s.partition ORDER BY s.base_offset) + 1,
        p.high_watermark) AS follows
    FROM staged AS s JOIN partitions AS p USING (topic_id, partition)
    WHERE s.last_offset >= p.high_watermark
) AS reaching

-- name: analyze_added
ANALYZE added

-- name: remove_covered_runs
DELETE FROM runs AS r USING added AS a
WHERE a.joins AND r.topic_id = a.topic_id AND r.partition = a.partition
    AND r.base_offset BETWEEN a.base_offset AND a.last_offset

-- name: insert_runs
INSERT INTO runs ({columns}) SELECT {columns} FROM added WHERE joins

-- name: advance_high_watermarks
UPDATE partitions AS p
SET high_watermark = a.reached + 1, max_timestamp_ms = greatest(p.max_timestamp_ms, a.max_timestamp_ms)
FROM (
    SELECT topic_id, partition, max(last_offset) AS reached, max(running_max_timestamp_ms) AS max_timestamp_ms
    FROM added WHERE joins GROUP BY topic_id, partition) AS a
WHERE p.topic_id = a.topic_id AND p.partition = a.partition

-- name: runs_left_out
-- Runs that do not join their partition, and runs of missing partitions.
SELECT run.topic_id, t.name AS topic, run.partition, run.base_offset, run.last_offset, run.is_partition_known
FROM (
    SELECT topic_id, partition, base_offset, last_offset, true AS is_partition_known FROM added
    WHERE NOT joins
    UNION ALL
    SELECT s.topic_id, s.partition, s.base_offset, s.last_offset, false FROM staged AS s
    WHERE NOT EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = s.topic_id AND p.partition = s.partition)
) AS run LEFT JOIN topics AS t USING (topic_id)
ORDER BY run.topic_id, run.partition, run.base_offset

-- name: set_sizes
UPDATE partitions AS p SET size_bytes = coalesce(r.length, 0)
FROM partitions AS q LEFT JOIN (SELECT topic_id, partition, sum(length) AS length FROM runs
    GROUP BY topic_id, partition) AS r
    USING (topic_id, partition)
WHERE q.topic_id = p.topic_id AND q.partition = p.partition AND p.size_bytes <> coalesce(r.length, 0)

-- name: remove_offsets_without_group
DELETE FROM committed_offsets AS o WHERE NOT EXISTS (SELECT FROM groups AS g WHERE g.group_id = o.group_id)

-- name: forget_tombstones
-- The journal does not say which tombstones went (cleanings): tables of compacted topics begin again.
UPDATE history_partitions SET tombstones_gone_to = -1 WHERE state_to > 0

-- name: remove_members_without_group
DELETE FROM group_members AS m WHERE NOT EXISTS (SELECT FROM groups AS g WHERE g.group_id = m.group_id)

-- name: pass_topic_changes
-- Greater than any number that an agent can have seen.
UPDATE topic_changes SET changes = changes + 1000000

-- name: make_time_partitions
SELECT add_time_partition('tombstones', 600, 15000) AND add_time_partition('outcomes', 600, 15000) AS are_made

-- name: add_tombstones
INSERT INTO tombstones (number, segment_id, object_key)
SELECT (SELECT min(number) FROM time_partitions
    WHERE of_table = 'tombstones' AND ends_at > clock_timestamp()), segment_id, object_key FROM staged

-- name: add_outcomes
INSERT INTO outcomes (number, segment_id, object_key, outcome)
SELECT (SELECT min(number) FROM time_partitions WHERE of_table = 'outcomes' AND ends_at > clock_timestamp()),
    segment_id, object_key, outcome FROM staged

-- name: count_time_partitions
UPDATE time_partitions AS p SET row_count = CASE of_table
    WHEN 'tombstones' THEN (SELECT count(*) FROM tombstones AS t WHERE t.number = p.number)
    ELSE (SELECT count(*) FROM outcomes AS o WHERE o.number = p.number) END
