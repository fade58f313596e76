-- What `tidelog recover` asks of the log's tables (docs/design/recovery.md#recover;
-- sequencer/journal/recovery.py). No agent serves while these run.

-- name: lock_recovery
SELECT pg_try_advisory_lock(x'7469646572656376'::bit(64)::bigint) AS locked  -- "tiderecv"

-- name: listing_table
CREATE TEMP TABLE IF NOT EXISTS listed (
    segment_id uuid NOT NULL, object_key text NOT NULL, size_bytes bigint NOT NULL,
    modified_at timestamptz NOT NULL, is_merged boolean NOT NULL)

-- name: empty_listing
TRUNCATE listed

-- name: copy_listing
COPY listed (segment_id, object_key, size_bytes, modified_at, is_merged) FROM STDIN

-- name: index_listing
CREATE UNIQUE INDEX IF NOT EXISTS listed_by_id ON listed (segment_id)

-- name: count_listing
SELECT count(*) FILTER (WHERE NOT is_merged) AS uploaded, count(*) FILTER (WHERE is_merged) AS merged
FROM listed

-- name: missing_table
CREATE TEMP TABLE IF NOT EXISTS missing (segment_id uuid PRIMARY KEY)

-- name: empty_missing
TRUNCATE missing

-- name: find_missing
INSERT INTO missing
SELECT segment_id FROM (SELECT DISTINCT segment_id FROM runs) AS referenced
WHERE NOT EXISTS (SELECT FROM listed WHERE listed.segment_id = referenced.segment_id)
    -- A marker is in its key, not in the bucket.
    AND NOT EXISTS (SELECT FROM segments AS s
        WHERE s.segment_id = referenced.segment_id AND s.object_key LIKE 'inline/%%')

-- name: leave_to_history
-- Runs that gave way to history: the journal does not say which, but their objects may be gone.
DELETE FROM runs AS r USING missing, partitions AS p
WHERE r.segment_id = missing.segment_id AND p.topic_id = r.topic_id AND p.partition = r.partition
    AND r.last_offset < p.local_start_offset

-- name: analyze
ANALYZE

-- name: missing_objects
-- A run whose segment has no row names no object that could come back.
SELECT missing.segment_id, s.object_key, s.size_bytes FROM missing JOIN segments AS s USING (segment_id)
ORDER BY segment_id

-- name: found_again
WITH gone AS (DELETE FROM missing WHERE segment_id = %(segment_id)s RETURNING segment_id)
INSERT INTO listed (segment_id, object_key, size_bytes, modified_at, is_merged)
SELECT gone.segment_id, %(object_key)s, %(size_bytes)s, clock_timestamp(), %(is_merged)s FROM gone

-- name: holes
-- Consecutive runs without an object, as one range each.
SELECT topic_id, partition, min(base_offset) AS base_offset, max(last_offset) AS last_offset,
    count(*) AS runs, sum(length)::bigint AS length,
    min(min_timestamp_ms) AS min_timestamp_ms, max(max_timestamp_ms) AS max_timestamp_ms,
    max(running_max_timestamp_ms) AS running_max_timestamp_ms
FROM (
    SELECT *, count(*) FILTER (WHERE begins)
        OVER (PARTITION BY topic_id, partition ORDER BY base_offset) AS hole
    FROM (
        SELECT r.*, lag(r.last_offset) OVER (PARTITION BY r.topic_id, r.partition ORDER BY r.base_offset)
                    IS DISTINCT FROM r.base_offset - 1 AS begins
        FROM runs AS r JOIN missing USING (segment_id)) AS run) AS numbered
GROUP BY topic_id, partition, hole
ORDER BY topic_id, partition, base_offset

-- name: spare_merged_objects
-- Merged objects that no run refers to: their footers may prove what is missing. An unknown one may hold what
-- the log never had.
SELECT listed.segment_id, listed.object_key, listed.size_bytes, s.segment_id IS NULL
    OR s.state = 'reserved' AS is_unknown
FROM listed LEFT JOIN segments AS s USING (segment_id)
WHERE listed.is_merged AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = listed.segment_id)
ORDER BY listed.segment_id

-- name: adopt_objects
-- An object that replaces others is as old as the newest of them. Whatever its row said before, it is in use
-- now.
INSERT INTO segments (segment_id, object_key, size_bytes, state, writer, lease_until, committed_at, tier)
SELECT given.segment_id, given.object_key, given.size_bytes, 'committed', %(writer)s, clock_timestamp(),
    clock_timestamp(), 1
FROM unnest(%(segment_ids)s::uuid[], %(object_keys)s::text[], %(sizes)s::bigint[]) AS given (segment_id,
    object_key, size_bytes)
ORDER BY given.segment_id
ON CONFLICT (segment_id) DO UPDATE
SET state = 'committed', size_bytes = excluded.size_bytes,
    writer = CASE WHEN segments.writer = %(beyond)s THEN segments.writer ELSE excluded.writer END,
    committed_at = coalesce(segments.committed_at, excluded.committed_at),
    unreferenced_since = NULL, doomed_at = NULL

-- name: adopted_beyond
-- What an unfinished recovery added after the end of the log, with its offsets.
SELECT r.segment_id, s.object_key, s.size_bytes, r.topic_id, r.partition, r.base_offset, r.last_offset
FROM segments AS s JOIN listed USING (segment_id) JOIN runs AS r USING (segment_id)
WHERE s.writer = %(beyond)s AND listed.is_merged
ORDER BY r.segment_id, r.topic_id, r.partition, r.base_offset

-- name: lock_partitions
SELECT count(*) AS locked FROM (
    SELECT 1 FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS given (topic_id, partition)
    JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p) AS row

-- name: delete_runs
WITH gone AS (
    DELETE FROM runs AS r
    USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[],
        %(last_offsets)s::bigint[])
          AS hole (topic_id, partition, base_offset, last_offset)
    WHERE r.topic_id = hole.topic_id AND r.partition = hole.partition
        AND r.base_offset BETWEEN hole.base_offset AND hole.last_offset
    RETURNING r.topic_id, r.partition, r.length
), shrunk AS (
    UPDATE partitions AS p
    SET size_bytes = p.size_bytes - gone.length, coordinate_epoch = p.coordinate_epoch + 1
    FROM (SELECT topic_id, partition, sum(length) AS length FROM gone GROUP BY topic_id, partition) AS gone
    WHERE p.topic_id = gone.topic_id AND p.partition = gone.partition
)
SELECT count(*) AS deleted FROM gone

-- name: insert_runs
WITH made AS (
    INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                      min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
    SELECT * FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[],
        %(last_offsets)s::bigint[],
                         %(segment_ids)s::uuid[], %(positions)s::bigint[], %(lengths)s::bigint[],
                         %(min_timestamps)s::bigint[], %(max_timestamps)s::bigint[],
                         %(running_max_timestamps)s::bigint[])
    RETURNING topic_id, partition, length, last_offset, max_timestamp_ms
)
-- Runs after the end of the log move the end.
UPDATE partitions AS p SET size_bytes = p.size_bytes + made.length,
    high_watermark = greatest(p.high_watermark, made.last_offset + 1),
    max_timestamp_ms = greatest(p.max_timestamp_ms, made.newest_ms)
FROM (
    SELECT topic_id, partition, sum(length) AS length, max(last_offset) AS last_offset,
        max(max_timestamp_ms) AS newest_ms
    FROM made GROUP BY topic_id, partition) AS made
WHERE p.topic_id = made.topic_id AND p.partition = made.partition

-- name: note_gone
INSERT INTO gone_ranges (topic_id, partition, base_offset, last_offset, reason)
SELECT * FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[],
    %(last_offsets)s::bigint[],
                     %(reasons)s::text[])
ON CONFLICT (topic_id, partition, base_offset) DO UPDATE
SET last_offset = greatest(gone_ranges.last_offset, excluded.last_offset), reason = excluded.reason

-- name: replay_producers
-- Adds what the headers of batches at known offsets say of their producers: the newest epoch, its last ten
-- batches.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(producer_ids)s::bigint[],
        %(epochs)s::integer[],
                         %(sequences)s::bigint[], %(base_offsets)s::bigint[], %(max_timestamps)s::bigint[])
        AS given (topic_id, partition, producer_id, producer_epoch, sequence, base_offset, max_timestamp)
    JOIN partitions AS p USING (topic_id, partition)
), batch AS (
    SELECT topic_id, partition, producer_id, producer_epoch, sequence, base_offset, max_timestamp FROM given
    UNION ALL
    SELECT s.topic_id, s.partition, s.producer_id, s.producer_epoch, known.sequence, known.base_offset,
        known.max_timestamp
    FROM (SELECT DISTINCT topic_id, partition, producer_id FROM given) AS asked
    JOIN producer_state AS s USING (topic_id, partition, producer_id)
    CROSS JOIN LATERAL unnest(s.sequences, s.base_offsets, s.max_timestamps) AS known (sequence, base_offset,
        max_timestamp)
), once AS (
    SELECT DISTINCT ON (topic_id, partition, producer_id, producer_epoch, base_offset) * FROM batch
), ranked AS (
    SELECT *, max(producer_epoch) OVER producer AS newest_epoch,
        row_number() OVER (producer ORDER BY producer_epoch DESC, base_offset DESC) AS age
    FROM once WINDOW producer AS (PARTITION BY topic_id, partition, producer_id)
)
INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets,
    max_timestamps)
SELECT topic_id, partition, producer_id, newest_epoch, array_agg(sequence ORDER BY base_offset),
    array_agg(base_offset ORDER BY base_offset), array_agg(max_timestamp ORDER BY base_offset)
FROM ranked WHERE producer_epoch = newest_epoch AND age <= 10
GROUP BY topic_id, partition, producer_id, newest_epoch
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
SET producer_epoch = excluded.producer_epoch, sequences = excluded.sequences,
    base_offsets = excluded.base_offsets,
    max_timestamps = excluded.max_timestamps, updated_at = excluded.updated_at

-- name: partition_ends
SELECT p.topic_id, p.partition, p.state, p.high_watermark, p.max_timestamp_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS given (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
ORDER BY p.topic_id, p.partition

-- name: gone_ranges
SELECT g.topic_id, t.name, g.partition, g.base_offset, g.last_offset, g.reason, g.found_at
FROM gone_ranges AS g JOIN partitions AS p USING (topic_id, partition) JOIN topics AS t USING (topic_id)
WHERE g.last_offset >= p.log_start_offset AND p.state = 'live'
ORDER BY g.topic_id, g.partition, g.base_offset LIMIT %(cap)s

-- name: forget_gone_ranges
DELETE FROM gone_ranges AS g
WHERE NOT EXISTS (
    SELECT FROM partitions AS p
    WHERE p.topic_id = g.topic_id AND p.partition = g.partition AND p.log_start_offset <= g.last_offset)

-- name: young_objects
-- In the bucket, and either unknown or only reserved. An object with a tombstone was deleted, and its upload
-- arrived late. Also segments that an unfinished recovery has committed, if some of their batches were
-- refused and may be accepted after others (outcome not null).
SELECT listed.segment_id, listed.object_key, listed.size_bytes, listed.modified_at, s.outcome
FROM listed LEFT JOIN segments AS s USING (segment_id)
WHERE NOT listed.is_merged AND (
    (s.segment_id IS NULL AND NOT EXISTS (SELECT FROM tombstones AS t WHERE t.segment_id = listed.segment_id)
        OR s.state = 'reserved')
        AND listed.modified_at >= coalesce(%(since)s::timestamptz, '-infinity')
    OR s.state = 'committed' AND s.writer = %(writer)s
        AND EXISTS (SELECT FROM unnest(s.outcome) AS number WHERE number & 7 IN (2, 4)))
ORDER BY listed.segment_id

-- name: reserve_again
INSERT INTO segments (segment_id, object_key, writer, lease_until)
SELECT given.segment_id, given.object_key, %(writer)s, clock_timestamp() + interval '1 day'
FROM unnest(%(segment_ids)s::uuid[], %(object_keys)s::text[]) AS given (segment_id, object_key)
ORDER BY given.segment_id
ON CONFLICT (segment_id) DO UPDATE SET writer = excluded.writer WHERE segments.state = 'reserved'

-- name: commit_again
-- Some batches of a segment were refused, and may be accepted now: the segment returns to its state before
-- the commit.
UPDATE segments SET state = 'reserved', outcome = NULL WHERE segment_id = %(segment_id)s

-- name: set_outcome
UPDATE segments SET outcome = %(outcome)s::bigint[] WHERE segment_id = %(segment_id)s

-- name: doom_leftovers
-- Objects that nothing names become garbage like any other: they are deleted after the usual grace period.
WITH left_over AS (
    INSERT INTO segments (segment_id, object_key, size_bytes, state, writer, lease_until, doomed_at)
    SELECT listed.segment_id, listed.object_key, listed.size_bytes, 'doomed', %(writer)s, clock_timestamp(),
        clock_timestamp()
    FROM listed WHERE NOT EXISTS (SELECT FROM segments AS s WHERE s.segment_id = listed.segment_id)
    ORDER BY listed.segment_id
    ON CONFLICT (segment_id) DO NOTHING
    RETURNING 1
)
SELECT count(*) AS doomed FROM left_over

-- name: partitions
SELECT p.topic_id, t.name, p.partition, p.log_start_offset, p.high_watermark
FROM partitions AS p JOIN topics AS t USING (topic_id) WHERE p.state = 'live' ORDER BY t.name, p.partition

-- name: end_writing
-- The next recovery does not try again what this one gave up.
UPDATE segments SET writer = %(writer)s || ' done' WHERE writer IN (%(writer)s, %(beyond)s)

-- name: raise_partition_epochs
UPDATE partitions SET coordinate_epoch = coordinate_epoch + 1

-- name: drop_workers
WITH dropped_agents AS (DELETE FROM agents), dropped_jobs AS (DELETE FROM jobs),
    dropped_holds AS (DELETE FROM holds),
    dropped_watch AS (DELETE FROM dooming)
UPDATE merge_candidates SET claimed_by = NULL WHERE claimed_by IS NOT NULL

-- name: jump_sequences
SELECT setval('node_ids',
    least(2147483647 - 1,
        (SELECT last_value FROM node_ids) + least(%(margin)s::bigint, 1000000))::integer) AS node_ids,
    setval('coordinator_epochs',
        (SELECT last_value FROM coordinator_epochs) + %(margin)s::bigint) AS coordinator_epochs

-- name: jump_producer_ids
UPDATE producer_ids
SET last_id = greatest(last_id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10) +
    %(margin)s::bigint

-- name: fence_coordinators
UPDATE groups SET coordinator_epoch = nextval('coordinator_epochs')

-- name: cluster
SELECT c.cluster_id, c.store_id, EXISTS (SELECT FROM topics) AS has_topics FROM cluster AS c

-- name: adopt_identity
UPDATE cluster SET cluster_id = %(cluster_id)s, store_id = %(store_id)s, store_name = %(store_name)s

-- name: journal_side
-- How far this database knows the journal, and when it was certainly still working: everything committed
-- before is in it.
SELECT j.epoch, j.last_entry, j.taken_at IS NOT NULL AS has_begun, j.recovering_producers_since, greatest(
    j.taken_at, (SELECT max(committed_at) FROM segments
        WHERE state = 'committed' AND writer NOT IN (%(writer)s, %(beyond)s)),
            (SELECT max(created_at) FROM topics),
    (SELECT max(last_success_at) FROM jobs), (SELECT max(committed_at) FROM committed_offsets)) AS known_at
FROM journal AS j

-- name: is_last_commit_known
-- Of the segments of an entry, in the temporary table `staged`.
SELECT EXISTS (SELECT FROM segments AS s
    WHERE s.segment_id = last.segment_id AND s.committed_at IS NOT NULL) AS is_known
FROM (SELECT segment_id FROM staged WHERE state = 'committed' ORDER BY committed_at DESC LIMIT 1) AS last

-- name: note_loaded
-- The database is as far as the journal now. New numbers begin above all used ones, also those of ignored
-- entries.
UPDATE journal SET epoch = %(epoch)s, last_entry = %(last_entry)s,
    last_number = greatest(last_number, %(last_entry)s) + 1000000,
    checkpoint_number = 0,
    last_checkpoint_number = greatest(last_checkpoint_number, %(checkpoint_number)s) + 1000000,
    snapshot = NULL, taken_at = %(taken_at)s, families = '{}', system_identifier = NULL, timeline = NULL,
    recovering_producers_since = %(producers_at)s

-- name: committed_since
SELECT segment_id, object_key, outcome FROM segments
WHERE state = 'committed' AND committed_at >= %(since)s AND outcome <> '{}' ORDER BY segment_id

-- name: open_transactions
-- Records of producers at these offsets, whose transactions no one has ended as far as the log says.
INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
SELECT given.producer_id, given.topic_id, given.partition, min(given.base_offset), clock_timestamp()
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(producer_ids)s::bigint[],
    %(base_offsets)s::bigint[]) AS given (topic_id, partition, producer_id, base_offset)
GROUP BY given.producer_id, given.topic_id, given.partition
ON CONFLICT (producer_id, topic_id, partition) DO UPDATE
SET first_offset = least(t.first_offset, excluded.first_offset)

-- name: abort_at_marker
-- A marker that only a merged object has: the records before it are left out, whatever it says.
WITH ended AS (
    DELETE FROM transaction_partitions AS t
    WHERE t.producer_id = %(producer_id)s AND t.topic_id = %(topic_id)s AND t.partition = %(partition)s
        AND t.first_offset < %(offset)s
    RETURNING t.first_offset
)
INSERT INTO aborted_transactions (topic_id, partition, last_offset, first_offset, producer_id, stable_offset)
SELECT %(topic_id)s, %(partition)s, %(offset)s, ended.first_offset, %(producer_id)s, coalesce((
    SELECT min(t.first_offset) FROM transaction_partitions AS t
    WHERE t.topic_id = %(topic_id)s AND t.partition = %(partition)s AND t.producer_id <> %(producer_id)s),
    %(offset)s + 1)
FROM ended
ON CONFLICT (topic_id, partition, last_offset) DO NOTHING
RETURNING first_offset

-- name: remove_transactions_without_records
DELETE FROM transaction_partitions AS t
WHERE t.first_offset IS NULL OR NOT EXISTS (
    SELECT FROM partitions AS p
    WHERE p.topic_id = t.topic_id AND p.partition = t.partition AND p.state = 'live'
        AND p.high_watermark > t.first_offset)

-- name: set_first_unstable_offsets
UPDATE partitions AS p SET first_unstable_offset = least_of.first_offset
FROM partitions AS q LEFT JOIN (
    SELECT topic_id, partition, min(first_offset) AS first_offset FROM transaction_partitions
    GROUP BY topic_id, partition) AS least_of USING (topic_id, partition)
WHERE q.topic_id = p.topic_id AND q.partition = p.partition
    AND p.first_unstable_offset IS DISTINCT FROM least_of.first_offset

-- name: drop_pending_offsets
WITH dropped_groups AS (DELETE FROM transaction_groups) DELETE FROM pending_offsets

-- name: name_open_producers
-- A journal has no transactional ids. Ending a transaction needs one.
INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms)
SELECT 'tidelog recovery ' || t.producer_id, t.producer_id, max(coalesce(s.producer_epoch, 0)), 60000
FROM transaction_partitions AS t LEFT JOIN producer_state AS s USING (topic_id, partition, producer_id)
WHERE NOT EXISTS (SELECT FROM transactions AS own WHERE own.producer_id = t.producer_id)
GROUP BY t.producer_id
ORDER BY t.producer_id
ON CONFLICT (transactional_id) DO NOTHING

-- name: open_producers
SELECT t.transactional_id, t.producer_id, t.producer_epoch FROM transactions AS t
WHERE EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = t.producer_id)
ORDER BY t.producer_id LIMIT %(cap)s

-- name: forget_transactional_ids
-- Their producers begin again, with new producer ids: what the log knows of their epochs may be old.
DELETE FROM transactions

-- name: end_journal_loading
-- Everything that recovery changed is in the next checkpoint: the journal begins with it, and garbage waits
-- for it.
UPDATE journal SET snapshot = NULL, checkpoint_number = 0, checkpoint_at = timestamptz 'epoch',
    recovering_producers_since = NULL
