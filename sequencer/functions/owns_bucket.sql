-- owns_bucket returns true if this database may change the bucket now: its ownership was confirmed within
-- two ratchets, by this Postgres, and is not lost (sequencer/cluster/ownership.py).
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
