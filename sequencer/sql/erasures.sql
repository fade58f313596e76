-- Erasure of records by key (docs/design/erasure.md): what a topic's log holds, the objects that its runs
-- move out of, and whether all that held them is gone.

-- name: ends
SELECT partition, log_start_offset, high_watermark, size_bytes, clock_timestamp() AS now FROM partitions
WHERE topic_id = %(topic_id)s AND state = 'live' ORDER BY partition

-- name: runs
-- A page of a partition's runs that begin below an offset, in order.
SELECT r.base_offset, r.last_offset, r.segment_id, r.position, r.length, s.object_key, s.size_bytes, s.tier
FROM (
    SELECT * FROM runs
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND base_offset >= %(from_offset)s AND base_offset < %(end_offset)s
    ORDER BY base_offset LIMIT %(cap)s
) AS r
JOIN segments AS s ON s.segment_id = r.segment_id
ORDER BY r.base_offset

-- name: inputs
-- Objects to move runs out of. An upload may be too young to be a candidate of merging.
SELECT s.segment_id, s.object_key, s.size_bytes, s.tier, s.committed_at, r.live_bytes,
    s.tier = 0 OR c.segment_id IS NOT NULL AS is_candidate
FROM unnest(%(segment_ids)s::uuid[]) AS given (segment_id)
CROSS JOIN LATERAL (
    SELECT * FROM segments WHERE segment_id = given.segment_id AND state = 'committed' OFFSET 0) AS s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(length), 0)::bigint AS live_bytes FROM runs
    WHERE segment_id = given.segment_id OFFSET 0) AS r
LEFT JOIN LATERAL (
    SELECT segment_id FROM merge_candidates WHERE segment_id = given.segment_id OFFSET 0) AS c ON true

-- name: page_of_segments
-- A page of all committed segments in id order, as the garbage scan reads them. `is_suspect`: the object may
-- have bytes that no run names. Its header, footer and trailer have 78 bytes, twice the writer's name, and 64
-- bytes per run; a merged object has 80 per partition or more.
WITH page AS MATERIALIZED (
    SELECT segment_id, object_key, size_bytes, tier, state, writer FROM segments
    WHERE segment_id > %(after)s::uuid ORDER BY segment_id LIMIT %(cap)s
)
SELECT page.segment_id, page.object_key, page.size_bytes, page.tier,
    page.state = 'committed' AND r.runs > 0 AND page.size_bytes - r.live_bytes
        > 78 + 2 * octet_length(page.writer)
            + CASE WHEN page.tier = 0 THEN 64 * r.runs ELSE 80 * r.partitions END AS is_suspect
FROM page
CROSS JOIN LATERAL (
    SELECT count(*) AS runs, count(DISTINCT (topic_id, partition)) AS partitions,
        coalesce(sum(length), 0)::bigint AS live_bytes
    FROM runs WHERE segment_id = page.segment_id OFFSET 0) AS r
ORDER BY page.segment_id

-- name: live_places
-- Where the runs of a topic lie in an object.
SELECT partition, position, length
FROM (SELECT * FROM runs WHERE segment_id = %(segment_id)s OFFSET 0) AS held
WHERE topic_id = %(topic_id)s

-- name: jobs_on_garbage
-- The jobs that hold objects without runs. They may have read them.
SELECT DISTINCT job_id FROM holds AS h
WHERE h.lease_until > clock_timestamp()
    AND NOT EXISTS (SELECT FROM runs AS r WHERE r.segment_id = h.segment_id)

-- name: older_jobs
-- The jobs on a topic's history that began before a moment, and may have read what was there then.
SELECT job_id FROM history_jobs
WHERE topic_id = %(topic_id)s AND state = 'running' AND started_at < %(before)s
    AND lease_until > clock_timestamp()

-- name: has_history
SELECT EXISTS (
    SELECT FROM history_tables WHERE topic_id = %(topic_id)s AND metadata_key IS NOT NULL) AS has_it

-- name: now
SELECT clock_timestamp() AS now

-- name: let_garbage_go
-- What was unreferenced before now waits for readers alone.
UPDATE erasures SET garbage_before = greatest(garbage_before, clock_timestamp()) RETURNING garbage_before

-- name: let_history_go
-- History's objects that no retained snapshot names may hold what was erased. Readers outside get no longer
-- grace for them.
UPDATE history_objects SET is_erased = true
WHERE topic_id = %(topic_id)s AND unreferenced_since IS NOT NULL AND NOT is_erased

-- name: waiting
-- How many objects may still hold what was erased; a thousand of a kind at most are counted. Among them are
-- those that a merge or a cleaning wrote and did not publish.
SELECT
    (SELECT count(*) FROM (SELECT FROM segments
        WHERE state = 'committed' AND unreferenced_since <= %(before)s LIMIT 1000) AS a)
    + (SELECT count(*) FROM (SELECT FROM segments
        WHERE state = 'doomed' AND (coalesce(unreferenced_since, doomed_at) <= %(before)s
            OR unreferenced_since IS NULL AND writer IN ('merge', 'clean', 'erase')
                AND reserved_at <= %(before)s)
        LIMIT 1000) AS b)
    + (SELECT count(*) FROM (SELECT FROM segments
        WHERE state = 'reserved' AND writer IN ('merge', 'clean', 'erase') AND reserved_at <= %(before)s
        LIMIT 1000) AS d)
        AS segments,
    (SELECT count(*) FROM (SELECT FROM history_objects
        WHERE topic_id = %(topic_id)s AND unreferenced_since IS NOT NULL AND is_erased LIMIT 1000) AS c)
        AS history_objects

-- name: ended_jobs
-- The ended jobs on a topic's history whose prefixes were not swept yet: what they left may lie there.
SELECT prefix FROM history_jobs
WHERE topic_id = %(topic_id)s AND state <> 'running' AND started_at < %(before)s ORDER BY prefix

-- name: drop_pages
-- Asks every agent to drop its pages of objects that were made before a moment.
UPDATE erasures SET number = number + 1, made_before = greatest(made_before, %(made_before)s) RETURNING number

-- name: agents_behind
-- Agents with a valid lease that have not dropped these pages yet.
SELECT count(*) AS agents FROM agents WHERE lease_until > clock_timestamp() AND erased_to < %(number)s
