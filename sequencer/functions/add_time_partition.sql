-- add_time_partition makes the next partitions of `tombstones` or `outcomes`, until they reach over the
-- next interval. It makes a table first and attaches it then, because that stops neither readers nor
-- writers of the others. It returns false if another transaction has a lock that this needs: try again
-- later.
--
-- It has the rights of the tables' owner (SECURITY DEFINER), because the agents' role may make no tables. So
-- it takes no other tables' names, and its search_path is fixed: a caller's temporary tables come last.
--
-- | parameter | meaning |
-- |---|---|
-- | of_table | `tombstones` or `outcomes` |
-- | width_s | the interval of a partition |
-- | lock_timeout_ms | how long to wait for a lock |
CREATE FUNCTION add_time_partition(of_table text, width_s double precision,
    lock_timeout_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $function$
#variable_conflict use_column
DECLARE
    wanted_table text := of_table;
    reached timestamptz;
    added bigint;
BEGIN
    IF wanted_table NOT IN ('tombstones', 'outcomes') THEN
        RAISE 'no table that is partitioned by time: %', wanted_table;
    END IF;
    -- A partition that begins later than the next interval is from before the clock was set back.
    SELECT max(p.ends_at) INTO reached FROM time_partitions AS p
    WHERE p.of_table = wanted_table AND NOT p.is_closed
        AND p.begins_at <= clock_timestamp() + make_interval(secs => width_s);
    IF reached >= clock_timestamp() + make_interval(secs => width_s) THEN
        RETURN true;
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    PERFORM pg_advisory_xact_lock(hashtext('time_partitions'), hashtext(wanted_table));
    SELECT greatest(max(p.ends_at), clock_timestamp()) INTO reached FROM time_partitions AS p
    WHERE p.of_table = wanted_table AND p.begins_at <= clock_timestamp() + make_interval(secs => width_s);
    WHILE reached < clock_timestamp() + make_interval(secs => width_s) LOOP
        added := nextval('time_partition_numbers');
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', wanted_table || '_' || added, wanted_table);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES IN (%s)', wanted_table,
            wanted_table || '_' || added, added);
        INSERT INTO time_partitions (of_table, number, begins_at, ends_at)
        VALUES (wanted_table, added, reached, reached + make_interval(secs => width_s));
        reached := reached + make_interval(secs => width_s);
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$function$;
REVOKE ALL ON FUNCTION add_time_partition(text, double precision, integer) FROM PUBLIC;
