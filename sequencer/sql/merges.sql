-- Merging (docs/design/merging.md#claims): candidates and their claims, what runs they hold, and what was
-- done. The swap itself is the function publish_merge (functions/publish_merge.sql).
--
-- A claim is a row's claimed_by. It ends with the job's holds: then free_lapsed removes it.

-- name: discover
-- A page of the agents' uploads, in the order of their commits, after a cursor. It has only what was
-- committed some time ago and before any transaction that still runs began: nothing can become visible behind
-- the cursor. Segments with long runs are skipped.
WITH horizon AS MATERIALIZED (
    SELECT least(
        clock_timestamp() - make_interval(secs => %(settle_s)s),
        (SELECT min(xact_start) FROM pg_stat_activity
         WHERE datname = current_database() AND backend_xid IS NOT NULL
             AND pid <> pg_backend_pid())) AS before
), page AS MATERIALIZED (
    SELECT s.segment_id, s.committed_at, s.size_bytes, s.tier, s.writer
    FROM segments AS s
    WHERE s.state = 'committed' AND s.committed_at < (SELECT before FROM horizon)
        AND (s.committed_at, s.segment_id) > (%(after_committed_at)s::timestamptz, %(after_segment_id)s::uuid)
    ORDER BY s.committed_at, s.segment_id LIMIT %(cap)s
), counted AS (
    SELECT page.*, (SELECT count(*) FROM runs AS r WHERE r.segment_id = page.segment_id) AS runs FROM page
    WHERE tier = 0 AND writer <> 'transaction'  -- markers go with the runs before them
), added AS (
    INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes)
    SELECT segment_id, 0, committed_at, size_bytes FROM counted
    WHERE runs > 0 AND size_bytes < runs * %(long_run_bytes)s::bigint
    ORDER BY segment_id
    ON CONFLICT (segment_id) DO NOTHING
    RETURNING 1
), uploaded AS (
    INSERT INTO merge_tiers AS t (tier, objects_out, bytes_out, runs_out)
    SELECT 0, count(*), coalesce(sum(size_bytes), 0), coalesce(sum(runs), 0) FROM counted HAVING count(*) > 0
    ON CONFLICT (tier) DO UPDATE SET
        objects_out = t.objects_out + excluded.objects_out, bytes_out = t.bytes_out + excluded.bytes_out,
        runs_out = t.runs_out + excluded.runs_out
)
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM added) AS added, last.committed_at,
    last.segment_id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM page ORDER BY committed_at DESC, segment_id DESC LIMIT 1) AS last ON true

-- name: free_lapsed
-- Claims of jobs whose holds have ended: their agents died or gave up. The jobs are found one after the other
-- through the index, each with one of its segments, because all holds of a job are renewed together. So this
-- costs as many look-ups as there are jobs, however much they claimed.
WITH RECURSIVE job AS (
    (SELECT claimed_by AS id, segment_id FROM merge_candidates WHERE claimed_by IS NOT NULL
        ORDER BY claimed_by LIMIT 1)
    UNION ALL
    SELECT next.claimed_by, next.segment_id FROM job CROSS JOIN LATERAL (
        SELECT claimed_by, segment_id FROM merge_candidates WHERE claimed_by > job.id ORDER BY claimed_by
        LIMIT 1) AS next
), lapsed AS MATERIALIZED (
    SELECT id FROM job WHERE NOT EXISTS (
        SELECT FROM holds AS h
        WHERE h.segment_id = job.segment_id AND h.job_id = job.id AND h.lease_until > clock_timestamp()
        OFFSET 0)
), found AS MATERIALIZED (
    SELECT c.segment_id FROM lapsed CROSS JOIN LATERAL (
        SELECT segment_id FROM merge_candidates WHERE claimed_by = lapsed.id OFFSET 0) AS c LIMIT %(cap)s
), candidate AS MATERIALIZED (
    SELECT segment_id FROM merge_candidates
    WHERE segment_id = ANY (ARRAY(SELECT segment_id FROM found))
        AND claimed_by = ANY (ARRAY(SELECT id FROM lapsed))
    ORDER BY segment_id FOR UPDATE SKIP LOCKED
)
UPDATE merge_candidates SET claimed_by = NULL WHERE segment_id = ANY (ARRAY(SELECT segment_id FROM candidate))
RETURNING segment_id

-- name: lock_candidates
-- The oldest unclaimed candidates of a tier. Those that another job is claiming now are skipped. The claim is
-- in the row itself, so a row that was claimed since the snapshot is judged as it is now [raced].
SELECT segment_id, committed_at, size_bytes FROM merge_candidates
WHERE tier = %(tier)s AND claimed_by IS NULL ORDER BY committed_at, segment_id LIMIT %(cap)s
FOR UPDATE SKIP LOCKED

-- name: claim_candidates
UPDATE merge_candidates SET claimed_by = %(job_id)s WHERE segment_id = ANY(%(segment_ids)s::uuid[])

-- name: forget_candidates
DELETE FROM merge_candidates WHERE segment_id = ANY(%(segment_ids)s::uuid[])

-- name: inputs
-- How much of each claimed segment is still in the log, and how much of that is in long runs. Laterals, here
-- and below, look up only the given segments, whatever the size of the tables.
SELECT s.segment_id, s.object_key, s.size_bytes, r.live_bytes, r.long_bytes
FROM unnest(%(segment_ids)s::uuid[]) AS given (segment_id)
CROSS JOIN LATERAL (
    SELECT segment_id, object_key, size_bytes FROM segments WHERE segment_id = given.segment_id OFFSET 0) AS s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(length), 0)::bigint AS live_bytes,
        coalesce(sum(length) FILTER (WHERE length >= %(long_run_bytes)s), 0)::bigint AS long_bytes
    FROM runs WHERE segment_id = given.segment_id OFFSET 0) AS r

-- name: runs
-- The runs in the claimed segments in key order, after a partition. Runs below the log start are about to go.
-- Markers of transactions, which no merge claims, come with the claimed run before them: those up to the next
-- run that is no marker.
WITH claimed AS MATERIALIZED (
    SELECT r.topic_id, r.partition, r.base_offset, r.last_offset, r.segment_id, r.position, r.length,
        r.min_timestamp_ms, r.max_timestamp_ms, s.committed_ms, NULL::text AS marker_key
    FROM unnest(%(segment_ids)s::uuid[]) AS given (segment_id)
    CROSS JOIN LATERAL (
        SELECT (extract(epoch FROM committed_at) * 1000)::bigint AS committed_ms FROM segments
        WHERE segment_id = given.segment_id OFFSET 0) AS s
    CROSS JOIN LATERAL (SELECT * FROM runs WHERE segment_id = given.segment_id OFFSET 0) AS r
    CROSS JOIN LATERAL (
        SELECT log_start_offset FROM partitions
        WHERE topic_id = r.topic_id AND partition = r.partition AND state = 'live' OFFSET 0) AS p
    WHERE (r.topic_id, r.partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer)
        AND r.last_offset >= p.log_start_offset
), markers AS (
    SELECT m.topic_id, m.partition, m.base_offset, m.last_offset, m.segment_id, m.position, m.length,
        m.min_timestamp_ms, m.max_timestamp_ms, s.committed_ms, s.object_key
    FROM claimed
    CROSS JOIN LATERAL (
        SELECT last_offset + 1 AS base_offset FROM runs
        WHERE topic_id = claimed.topic_id AND partition = claimed.partition
            AND base_offset = claimed.last_offset + 1 AND format = 'marker' OFFSET 0) AS first
    LEFT JOIN LATERAL (
        SELECT base_offset FROM runs
        WHERE topic_id = claimed.topic_id AND partition = claimed.partition
            AND base_offset > claimed.last_offset AND format <> 'marker'
        ORDER BY base_offset LIMIT 1) AS next ON true
    CROSS JOIN LATERAL (
        SELECT * FROM runs
        WHERE topic_id = claimed.topic_id AND partition = claimed.partition
            AND base_offset > claimed.last_offset
            AND base_offset < coalesce(next.base_offset, 9223372036854775807) OFFSET 0) AS m
    CROSS JOIN LATERAL (
        SELECT object_key, (extract(epoch FROM committed_at) * 1000)::bigint AS committed_ms FROM segments
        WHERE segment_id = m.segment_id OFFSET 0) AS s
)
SELECT topic_id, partition, base_offset, last_offset, segment_id, position, length, min_timestamp_ms,
    max_timestamp_ms, marker_key,
    CASE WHEN max_timestamp_ms < 0 THEN committed_ms ELSE least(max_timestamp_ms, committed_ms) END
        AS aged_from_ms
FROM (SELECT * FROM claimed UNION ALL SELECT * FROM markers) AS r
ORDER BY topic_id, partition, base_offset LIMIT %(cap)s

-- name: topic_configs
SELECT topic_id, config, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM topics WHERE topic_id = ANY(%(topic_ids)s::uuid[])

-- name: publish
-- Without the ownership of the bucket the publish gets no job, so it finds no hold.
SELECT p.state, p.swaps, bucket.is_owned FROM (SELECT owns_bucket() AS is_owned OFFSET 0) AS bucket
CROSS JOIN LATERAL publish_merge(
    job => CASE WHEN bucket.is_owned THEN %(job_id)s::uuid END, output => %(output)s,
    output_bytes => %(output_bytes)s, output_tier => %(output_tier)s::smallint,
    newest => %(newest)s, may_be_merged_again => %(may_be_merged_again)s,
    topic_ids => %(topic_ids)s, partition_numbers => %(partition_numbers)s, swap_parts => %(swap_parts)s,
    input_swaps => %(input_swaps)s, input_base_offsets => %(input_base_offsets)s,
    input_segments => %(input_segments)s,
    input_positions => %(input_positions)s,
    run_swaps => %(run_swaps)s, run_base_offsets => %(run_base_offsets)s,
    run_last_offsets => %(run_last_offsets)s,
    run_positions => %(run_positions)s, run_lengths => %(run_lengths)s,
    run_min_timestamps => %(run_min_timestamps)s, run_max_timestamps => %(run_max_timestamps)s) AS p

-- name: forget_merged
-- At a merge's end: inputs that hold nothing more, or all inputs if the merge handled all they hold.
DELETE FROM merge_candidates AS c
WHERE segment_id = ANY(%(segment_ids)s::uuid[]) AND claimed_by = %(job_id)s
    AND (%(is_complete)s OR NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = c.segment_id))

-- name: release_candidates
UPDATE merge_candidates SET claimed_by = NULL
WHERE segment_id = ANY(%(segment_ids)s::uuid[]) AND claimed_by = %(job_id)s

-- name: forget_emptied
-- What holds nothing more is no candidate. A job that claims one forgets it itself.
DELETE FROM merge_candidates AS c
WHERE segment_id = ANY(%(segment_ids)s::uuid[]) AND claimed_by IS NULL
    AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = c.segment_id)

-- name: give_up_reserved
-- Outputs of which no run was published: their reservation ends now.
UPDATE segments SET lease_until = clock_timestamp()
WHERE segment_id = ANY (ARRAY(
    SELECT s.segment_id FROM unnest(%(segment_ids)s::uuid[]) AS given (segment_id)
    CROSS JOIN LATERAL (SELECT * FROM segments WHERE segment_id = given.segment_id OFFSET 0) AS s
    WHERE s.state = 'reserved' AND s.lease_until > clock_timestamp()
    ORDER BY s.segment_id))

-- name: count_merge
INSERT INTO merge_tiers AS t (tier, merges, objects_in, objects_out, bytes_in, bytes_out, runs_in, runs_out,
    swaps_refused, runs_damaged,
                              last_success_at)
VALUES (%(tier)s, 1, %(objects_in)s, %(objects_out)s, %(bytes_in)s, %(bytes_out)s, %(runs_in)s, %(runs_out)s,
    %(swaps_refused)s,
        %(runs_damaged)s, clock_timestamp())
ON CONFLICT (tier) DO UPDATE SET merges = t.merges + 1, objects_in = t.objects_in + excluded.objects_in,
    objects_out = t.objects_out + excluded.objects_out, bytes_in = t.bytes_in + excluded.bytes_in,
    bytes_out = t.bytes_out + excluded.bytes_out,
    runs_in = t.runs_in + excluded.runs_in, runs_out = t.runs_out + excluded.runs_out,
    swaps_refused = t.swaps_refused + excluded.swaps_refused,
    runs_damaged = t.runs_damaged + excluded.runs_damaged,
    last_success_at = excluded.last_success_at

-- name: tiers
SELECT tier, merges, objects_in, objects_out, bytes_in, bytes_out, runs_in, runs_out, swaps_refused,
    runs_damaged,
    extract(epoch FROM clock_timestamp() - last_success_at)::float8 AS success_age_s
FROM merge_tiers ORDER BY tier
