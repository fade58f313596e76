-- name: reserve
INSERT INTO segments (segment_id, object_key, writer, lease_until)
SELECT segment_id, object_key, %(writer)s::text,
    clock_timestamp() + make_interval(secs => %(lease_s)s::double precision)
FROM unnest(%(segment_ids)s::uuid[], %(object_keys)s::text[]) AS given (segment_id, object_key)
ORDER BY segment_id
ON CONFLICT (segment_id) DO NOTHING

-- name: doom_expired
-- The clock is read once, before the rows (a stable value that the index can use). A row that a commit holds
-- is skipped. A row that was committed just before it was locked is seen as it is now, and stays. Oldest
-- leases first, in id order within the step.
WITH expired AS (
    SELECT segment_id FROM (
        SELECT segment_id, state, lease_until FROM segments
        WHERE state = 'reserved' AND lease_until < (SELECT clock_timestamp())
        ORDER BY lease_until LIMIT %(cap)s::integer FOR NO KEY UPDATE SKIP LOCKED) AS oldest
)
UPDATE segments SET state = 'doomed', doomed_at = clock_timestamp()
WHERE segment_id IN (SELECT segment_id FROM expired) AND state = 'reserved'
RETURNING segment_id, object_key
