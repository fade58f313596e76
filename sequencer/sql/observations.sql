-- What one agent measures for the whole cluster, and all agents read. Times are seconds since 1970, so that
-- ages are right whenever they are read.

-- name: observe
-- The measurement is bounded, whatever the log holds and whatever was deleted:
-- - Segments on their way out are counted up to a cap, newest first: index entries of removed rows are at
--   the other end. Beyond the cap Postgres' own estimate of the index is used. Below it, entries of rows
--   that were removed since the last measurement are read as well, once.
-- - Tombstones are counted as they come, per partition.
-- - What is ready for merging is read from its index up to a cap per tier, oldest first. The rest is
--   estimated by the time that it spans.
-- The measurement's time is that of its beginning.
WITH counted AS (
    SELECT state, CASE WHEN seen < %(most_segments)s THEN seen
        ELSE greatest(seen, estimate.reltuples::bigint) END AS segments
    FROM (VALUES
        ('reserved', 'segments_reserved', (SELECT count(*) FROM (
            SELECT FROM segments WHERE state = 'reserved' ORDER BY lease_until DESC
            LIMIT %(most_segments)s) AS newest)),
        ('unreferenced', 'segments_unreferenced', (SELECT count(*) FROM (
            SELECT FROM segments WHERE state = 'committed' AND unreferenced_since IS NOT NULL
            ORDER BY unreferenced_since DESC LIMIT %(most_segments)s) AS newest)),
        ('doomed', 'segments_to_delete', (SELECT count(*) FROM (
            SELECT FROM segments WHERE state = 'doomed'
            ORDER BY coalesce(unreferenced_since, doomed_at) DESC LIMIT %(most_segments)s) AS newest))
    ) AS looked (state, index_name, seen)
    CROSS JOIN LATERAL (SELECT reltuples FROM pg_class WHERE oid = looked.index_name::regclass
        OFFSET 0) AS estimate
), ripe AS (
    SELECT tier.number AS tier, looked.segments * span.share AS segments, looked.units * span.share AS units,
        looked.size_bytes * span.share AS size_bytes, looked.oldest
    FROM generate_series(0, %(most_tiers)s) AS tier (number)
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, count(DISTINCT committed_at) AS units, sum(size_bytes) AS size_bytes,
            min(committed_at) AS oldest, max(committed_at) AS reached
        FROM (
            SELECT committed_at, size_bytes FROM merge_candidates
            WHERE tier = tier.number AND claimed_by IS NULL
            ORDER BY committed_at, segment_id LIMIT %(most_candidates)s) AS oldest_first) AS looked
    CROSS JOIN LATERAL (
        SELECT CASE WHEN looked.segments < %(most_candidates)s OR looked.reached = looked.oldest THEN 1
            ELSE extract(epoch FROM newest.committed_at - looked.oldest) / extract(epoch FROM looked.reached
                - looked.oldest) END AS share
        FROM (
            SELECT committed_at FROM merge_candidates WHERE tier = tier.number AND claimed_by IS NULL
            ORDER BY committed_at DESC, segment_id DESC LIMIT 1) AS newest) AS span
)
INSERT INTO observation (observed_at, seen)
SELECT statement_timestamp(), jsonb_build_object(
    'agents', (SELECT alive FROM agents_shown),
    'segments', (SELECT jsonb_object_agg(state, segments) FROM counted),
    'tombstones', (SELECT coalesce(sum(row_count), 0)::bigint FROM time_partitions
        WHERE of_table = 'tombstones'),
    'ripe', (SELECT coalesce(jsonb_agg(jsonb_build_object(
        'tier', tier, 'segments', segments::bigint, 'units', units::bigint, 'size_bytes', size_bytes::bigint,
        'oldest_at', extract(epoch FROM oldest)) ORDER BY tier), '[]') FROM ripe),
    'merged', (SELECT coalesce(jsonb_agg(to_jsonb(t) || jsonb_build_object(
        'last_success_at', extract(epoch FROM last_success_at)) ORDER BY tier), '[]') FROM merge_tiers AS t),
    'jobs', (SELECT coalesce(jsonb_agg(jsonb_build_object(
        'name', name, 'running', holder IS NOT NULL AND lease_until > clock_timestamp(),
        'last_success_at', extract(epoch FROM last_success_at), 'last_error', last_error) ORDER BY name),
            '[]') FROM jobs),
    'journal', (SELECT jsonb_build_object(
        'taken_at', extract(epoch FROM taken_at), 'checkpoint_at', extract(epoch FROM checkpoint_at),
        'entries', entries,
        'entry_bytes', entry_bytes, 'checkpoint_bytes', checkpoint_bytes) FROM journal))
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
ON CONFLICT (only_row) DO UPDATE SET observed_at = excluded.observed_at, seen = excluded.seen
-- A paused or replaced observer may be late. A row from the future is from before the clock was set back.
WHERE observation.observed_at < excluded.observed_at OR observation.observed_at > clock_timestamp()
RETURNING only_row

-- name: latest
SELECT seen, extract(epoch FROM o.observed_at)::float8 AS observed_at,
    extract(epoch FROM clock_timestamp())::float8 AS now,
    extract(epoch FROM clock_timestamp() - l.observed_at)::float8 AS lag_age_s,
    l.topics, l.late_topics, l.behind_s, l.records, l.raw_bytes
FROM observation AS o LEFT JOIN history_lag AS l ON true

-- name: note_history_lag
-- Of several services the one that looked last is right.
INSERT INTO history_lag (observed_at, topics, late_topics, behind_s, records, raw_bytes)
SELECT statement_timestamp(), %(topics)s, %(late_topics)s, %(behind_s)s, %(records)s, %(raw_bytes)s
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
ON CONFLICT (only_row) DO UPDATE SET observed_at = excluded.observed_at, topics = excluded.topics,
    late_topics = excluded.late_topics, behind_s = excluded.behind_s, records = excluded.records,
    raw_bytes = excluded.raw_bytes
