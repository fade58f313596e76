-- Jobs: their holders, where a pass stopped, and how long ago each last succeeded. All of it is hints, so
-- nothing waits for a standby.

-- name: claim
-- One holder at a time, and in the whole cluster at most once per min_interval_s. A dead holder is replaced
-- when its lease has ended. A failed run may be repeated at once (last_started_at is null again). No holder
-- while the bucket is another database's. A claim that comes too early only reads: every agent tries, and
-- most get nothing.
INSERT INTO jobs (name, holder, lease_until, last_started_at)
SELECT %(name)s::text, %(holder)s::uuid, clock_timestamp() + make_interval(secs => %(lease_s)s),
    clock_timestamp()
FROM ownership, (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE lost_because IS NULL AND NOT EXISTS (
    SELECT FROM jobs WHERE name = %(name)s::text
        AND ((holder IS NOT NULL AND lease_until >= clock_timestamp())
            OR last_started_at > clock_timestamp() - make_interval(secs => %(min_interval_s)s)))
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, lease_until = excluded.lease_until, last_started_at = excluded.last_started_at
WHERE (jobs.holder IS NULL OR jobs.lease_until < clock_timestamp())
    AND (jobs.last_started_at IS NULL
        OR jobs.last_started_at <= clock_timestamp() - make_interval(secs => %(min_interval_s)s))
RETURNING progress

-- name: renew
UPDATE jobs SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s), progress = %(progress)s
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE name = %(name)s AND holder = %(holder)s AND lease_until > clock_timestamp()
RETURNING name

-- name: succeed
UPDATE jobs SET holder = NULL, lease_until = NULL, last_success_at = clock_timestamp(), last_error = NULL,
    progress = %(progress)s
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE name = %(name)s AND holder = %(holder)s

-- name: fail
UPDATE jobs SET holder = NULL, lease_until = NULL, last_started_at = NULL, last_error = %(error)s
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE name = %(name)s AND holder = %(holder)s

-- name: statuses
SELECT name, holder IS NOT NULL AND lease_until > clock_timestamp() AS running,
    extract(epoch FROM clock_timestamp() - last_success_at)::float8 AS success_age_s, last_error
FROM jobs ORDER BY name
