-- Whether this database owns the bucket (sequencer/cluster/ownership.py). One row, locked before it is
-- changed; agents read it without a lock.

-- name: lock
-- The time is from before any wait for the lock, so an ownership counts rather too short than too long.
SELECT o.epoch, o.nonces, o.lost_because, o.watched, o.watched_since, o.confirmed_at,
    o.system_identifier, o.database_oid, o.timeline, o.postmaster_started_at,
    (SELECT system_identifier FROM pg_control_system()) AS here_system_identifier,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS here_database_oid,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer AS here_timeline,
    pg_postmaster_start_time() AS here_postmaster_started_at,
    (SELECT cluster_id FROM cluster) AS cluster_id, clock_timestamp() AS now
FROM ownership AS o FOR NO KEY UPDATE

-- name: propose
-- The next nonce, before it is put into the bucket. What another Postgres confirmed is void.
UPDATE ownership SET epoch = %(epoch)s, nonces = %(nonces)s::uuid[], ratchet_s = %(ratchet_s)s,
    confirmed_at = CASE WHEN %(is_at_home)s THEN confirmed_at END,
    system_identifier = %(system_identifier)s, database_oid = %(database_oid)s, timeline = %(timeline)s,
    postmaster_started_at = %(postmaster_started_at)s, watched = NULL, watched_since = NULL

-- name: watch
UPDATE ownership SET watched = %(watched)s, watched_since = %(watched_since)s, ratchet_s = %(ratchet_s)s

-- name: confirm
-- A confirmed_at in the future is from before the clock was set back.
UPDATE ownership SET ratchets = ratchets + 1,
    confirmed_at = CASE WHEN confirmed_at <= clock_timestamp() THEN greatest(confirmed_at, %(began)s)
        ELSE %(began)s END
WHERE epoch = %(epoch)s AND %(nonce)s::uuid = ANY(nonces) AND lost_because IS NULL
RETURNING epoch

-- name: confirm_take_over
UPDATE ownership SET confirmed_at = %(began)s, ratchets = ratchets + 1,
    lost_because = %(stopped_because)s::text,
    lost_at = CASE WHEN %(stopped_because)s::text IS NULL THEN NULL ELSE clock_timestamp() END
WHERE epoch = %(epoch)s AND %(nonce)s::uuid = ANY(nonces)
RETURNING epoch

-- name: lose
UPDATE ownership SET lost_because = %(because)s, lost_at = clock_timestamp()

-- name: resume
UPDATE ownership SET lost_because = NULL, lost_at = NULL

-- name: state
SELECT o.epoch, o.nonces, o.ratchets, o.ratchet_s, o.lost_because, o.watched IS NOT NULL AS is_watching,
    extract(epoch FROM clock_timestamp() - o.confirmed_at)::float8 AS confirmed_age_s,
    (SELECT store_id FROM cluster) AS store_id,
    owns_bucket() AS is_confirmed
FROM ownership AS o
