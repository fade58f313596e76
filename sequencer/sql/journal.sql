-- The commit journal (docs/design/recovery.md#the-commit-journal). The reading statements of one entry or
-- checkpoint share a REPEATABLE READ transaction: one moment.

-- name: state
SELECT epoch, system_identifier, timeline, last_number, last_entry, snapshot::text AS snapshot, taken_at,
    topic_changes, mark_times, mark_xids,
    families::text AS families, checkpoint_number, checkpoint_at, checkpoint_bytes, entry_bytes,
    checkpoint_entry_bytes, entries,
    extract(epoch FROM clock_timestamp() - written_at)::float8 AS written_age_s,
    extract(epoch FROM clock_timestamp() - taken_at)::float8 AS taken_age_s,
    extract(epoch FROM clock_timestamp() - checkpoint_at)::float8 AS checkpoint_age_s,
    (SELECT system_identifier FROM pg_control_system()) AS here_system_identifier,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS here_timeline,
    CASE WHEN snapshot IS NULL THEN 0
         ELSE pg_snapshot_xmax(pg_current_snapshot())::text::bigint
             - pg_snapshot_xmin(snapshot)::text::bigint END AS snapshot_age_xids
FROM journal

-- name: moment
-- The first statement of the reading. now() is when the transaction began, before its snapshot was taken.
-- next_xid is read afterwards. The greatest id of a snapshot cannot replace it: transactions with higher ids
-- may have been running already.
SELECT now() AS taken_at, snapshot::text AS snapshot, pg_snapshot_xmin(snapshot)::text::bigint AS xmin,
    pg_snapshot_xmax(snapshot)::text::bigint + age(pg_snapshot_xmax(snapshot)::xid) AS next_xid,
    (SELECT changes FROM topic_changes) AS topic_changes,
    (SELECT cluster_id FROM cluster) AS cluster_id,
    (SELECT max(number) FROM migrations) AS migration,
    (SELECT system_identifier FROM pg_control_system()) AS system_identifier,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS timeline,
    (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM node_ids) AS node_ids,
    (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM coordinator_epochs) AS coordinator_epochs,
    set_config('statement_timeout', %(timeout_ms)s::text, true) AS statements,
    set_config('idle_in_transaction_session_timeout', %(timeout_ms)s::text, true) AS pauses
FROM pg_current_snapshot() AS snapshot

-- name: columns
SELECT c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS names,
    array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) AS types
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.oid = ANY(%(tables)s::text[]::regclass[]) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY c.relname

-- name: new_segments
-- Committed since the snapshot `since`, oldest commit first. The index on committed_at bounds the search. The
-- transaction that wrote a row decides exactly if the row is new. A row that was only marked since is read
-- again, which is harmless.
SELECT s.segment_id, coalesce(cardinality(s.outcome), 0) AS batches FROM segments AS s
WHERE s.state = 'committed' AND s.committed_at >= %(committed_from)s
    AND age(s.xmin) <= age(pg_snapshot_xmin(%(since)s::pg_snapshot)::xid)
    AND NOT pg_visible_in_snapshot((%(next_xid)s::bigint - age(s.xmin))::text::xid8, %(since)s::pg_snapshot)
ORDER BY s.committed_at, s.segment_id LIMIT %(cap)s

-- name: segments_by_id
SELECT s.* FROM segments AS s WHERE s.segment_id = ANY(%(segment_ids)s::uuid[])

-- name: runs_by_segment
SELECT r.* FROM runs AS r WHERE r.segment_id = ANY(%(segment_ids)s::uuid[])

-- name: aborted_transactions_by_segment
-- Those whose markers lie in new runs.
SELECT a.* FROM runs AS r
CROSS JOIN LATERAL (
    SELECT * FROM aborted_transactions AS t
    WHERE t.topic_id = r.topic_id AND t.partition = r.partition
        AND t.last_offset BETWEEN r.base_offset AND r.last_offset OFFSET 0) AS a
WHERE r.segment_id = ANY(%(segment_ids)s::uuid[])

-- name: open_transactions
SELECT t.* FROM transaction_partitions AS t WHERE t.first_offset IS NOT NULL

-- name: partitions_cut
-- Partitions whose log start or local start is at or after a new run: runs before it may have been deleted
-- before any entry had them.
SELECT p.* FROM (
    SELECT topic_id, partition, min(base_offset) AS base_offset FROM runs
    WHERE segment_id = ANY(%(segment_ids)s::uuid[])
    GROUP BY topic_id, partition) AS r
JOIN partitions AS p USING (topic_id, partition)
WHERE greatest(p.log_start_offset, p.local_start_offset) >= r.base_offset
    AND greatest(p.log_start_offset, p.local_start_offset) > 0

-- name: changed_topics
SELECT t.* FROM topics AS t
WHERE age(t.xmin) <= age(pg_snapshot_xmin(%(since)s::pg_snapshot)::xid)
    AND NOT pg_visible_in_snapshot((%(next_xid)s::bigint - age(t.xmin))::text::xid8, %(since)s::pg_snapshot)

-- name: partitions_of_changed_topics
SELECT p.* FROM topics AS t JOIN partitions AS p USING (topic_id)
WHERE age(t.xmin) <= age(pg_snapshot_xmin(%(since)s::pg_snapshot)::xid)
    AND NOT pg_visible_in_snapshot((%(next_xid)s::bigint - age(t.xmin))::text::xid8, %(since)s::pg_snapshot)

-- name: changed_segments
-- Reserved, or doomed: from the partial indexes of both.
SELECT s.* FROM segments AS s
WHERE s.state IN ('reserved', 'doomed')
    AND age(s.xmin) <= age(pg_snapshot_xmin(%(since)s::pg_snapshot)::xid)
    AND NOT pg_visible_in_snapshot((%(next_xid)s::bigint - age(s.xmin))::text::xid8, %(since)s::pg_snapshot)

-- name: take_number
-- Runs before an entry is written. No row: another writer continued.
UPDATE journal SET last_number = last_number + 1
WHERE epoch = %(epoch)s AND last_entry = %(last_entry)s AND checkpoint_number > 0
RETURNING last_number AS number

-- name: confirm_entry
UPDATE journal SET last_entry = %(number)s, snapshot = %(snapshot)s::pg_snapshot, taken_at = %(taken_at)s,
    topic_changes = %(topic_changes)s,
    mark_times = %(mark_times)s::timestamptz[], mark_xids = %(mark_xids)s::bigint[],
    families = %(families)s::jsonb,
    written_at = clock_timestamp(), entries = entries + %(entries)s,
    entry_bytes = entry_bytes + %(size_bytes)s
WHERE epoch = %(epoch)s AND last_entry = %(last_entry)s
RETURNING last_entry

-- name: take_checkpoint_number
UPDATE journal SET last_checkpoint_number = last_checkpoint_number + 1
RETURNING last_checkpoint_number AS number, last_entry, last_number

-- name: confirm_checkpoint
-- While entries continue, only the newest checkpoint counts.
UPDATE journal SET checkpoint_number = %(number)s, checkpoint_at = %(taken_at)s,
    checkpoint_bytes = %(size_bytes)s,
    checkpoint_entry_bytes = entry_bytes, written_at = clock_timestamp()
WHERE epoch = %(epoch)s AND checkpoint_number < %(number)s
RETURNING checkpoint_number

-- name: begin_journal
-- A checkpoint with which the journal begins, or begins again: the next entry continues it.
UPDATE journal SET checkpoint_number = %(number)s, checkpoint_at = %(taken_at)s,
    checkpoint_bytes = %(size_bytes)s,
    checkpoint_entry_bytes = entry_bytes, written_at = clock_timestamp(),
    epoch = %(epoch)s, system_identifier = %(system_identifier)s, timeline = %(timeline)s,
    last_entry = %(follows)s,
    snapshot = %(snapshot)s::pg_snapshot, taken_at = %(taken_at)s, topic_changes = %(topic_changes)s,
    mark_times = %(mark_times)s::timestamptz[], mark_xids = %(mark_xids)s::bigint[], families = '{}'
WHERE epoch <= %(epoch)s AND checkpoint_number < %(number)s AND last_number = %(follows)s
RETURNING checkpoint_number

-- name: unjournaled
-- True if the journal lacks something that was committed so long ago that it should have it.
SELECT EXISTS (
    SELECT FROM segments AS s
    WHERE s.state = 'committed' AND s.committed_at > j.taken_at
        AND s.committed_at < clock_timestamp() - make_interval(secs => %(older_than_s)s)) AS is_behind,
    extract(epoch FROM clock_timestamp() - j.taken_at)::float8 AS age_s
FROM journal AS j WHERE j.taken_at IS NOT NULL
