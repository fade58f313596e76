-- Whether this database owns the bucket (sequencer/ownership.py). The bucket holds the same epoch and nonce in the object `<cluster>/ownership`.
CREATE TABLE ownership (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch bigint NOT NULL DEFAULT 0,               -- raised by every take-over; 0: never ratcheted
    nonces uuid[] NOT NULL DEFAULT '{}',           -- of this epoch, newest last: those that this database wrote, or was about to write
    ratchets bigint NOT NULL DEFAULT 0,            -- that were confirmed
    ratchet_s double precision NOT NULL DEFAULT 60, -- the pause between two, as the last holder had it
    confirmed_at timestamptz,                      -- just before the put of the last confirmed nonce, by this database's clock
    -- The Postgres that ratcheted last. A copy has another system identifier, database or start; what was confirmed before is void there.
    system_identifier bigint,
    database_oid bigint,
    timeline integer,
    postmaster_started_at timestamptz,
    watched text,                                  -- what a Postgres that has started since sees in the bucket, before it writes
    watched_since timestamptz,
    lost_because text,                             -- a sentence for people; not null: agents do not serve, merge or delete
    lost_at timestamptz
);
INSERT INTO ownership DEFAULT VALUES;

-- True if this database may change the bucket now: its ownership was confirmed within two ratchets, here, and is not lost.
CREATE FUNCTION owns_bucket() RETURNS boolean LANGUAGE sql STABLE AS $function$
    SELECT coalesce((
        SELECT lost_because IS NULL AND confirmed_at <= clock_timestamp()
            AND confirmed_at + make_interval(secs => 2 * ratchet_s) > clock_timestamp()
            AND system_identifier = (SELECT system_identifier FROM pg_control_system())
            AND database_oid = (SELECT oid::bigint FROM pg_database WHERE datname = current_database())
            AND timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            AND postmaster_started_at = pg_postmaster_start_time()
        FROM ownership), false)
$function$;
