-- Holds: what a job reads or will publish stays while the job lives
-- (docs/design/commit.md#references-and-holds, References).

-- name: lock_segments
-- Shared between jobs. Dooming locks the row exclusively. So either it sees the hold, or this finds the
-- segment doomed.
SELECT segment_id FROM segments WHERE segment_id = ANY(%(segment_ids)s::uuid[]) AND state <> 'doomed'
ORDER BY segment_id FOR SHARE

-- name: hold
INSERT INTO holds (segment_id, job_id, lease_until)
SELECT segment_id, %(job_id)s, clock_timestamp() + make_interval(secs => %(lease_s)s)
FROM unnest(%(segment_ids)s::uuid[]) AS held (segment_id)
ORDER BY segment_id
ON CONFLICT (segment_id, job_id) DO UPDATE SET lease_until = excluded.lease_until

-- name: lock_holds_of_job
SELECT lease_until > clock_timestamp() AS live FROM holds WHERE job_id = %(job_id)s
ORDER BY segment_id FOR NO KEY UPDATE

-- name: renew
UPDATE holds SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE job_id = %(job_id)s

-- name: release
DELETE FROM holds WHERE job_id = %(job_id)s

-- name: purge_lapsed
-- An expired hold holds nothing. Its row may stay a while for inspection.
WITH lapsed AS (
    SELECT segment_id, job_id FROM holds
    WHERE lease_until < statement_timestamp() - make_interval(secs => %(older_than_s)s)
    ORDER BY lease_until LIMIT %(cap)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM holds AS h USING lapsed WHERE h.segment_id = lapsed.segment_id AND h.job_id = lapsed.job_id
    RETURNING 1
)
SELECT count(*) AS deleted FROM gone
