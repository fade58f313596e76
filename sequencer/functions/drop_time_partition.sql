-- drop_time_partition drops a closed partition with all its rows. It returns false if another transaction
-- has a lock that this needs: try again later. It waits no longer than given, since readers of the table
-- wait behind it.
--
-- It has the rights of the tables' owner, as add_time_partition has.
--
-- | parameter | meaning |
-- |---|---|
-- | of_table | `tombstones` or `outcomes` |
-- | number | of the partition |
-- | lock_timeout_ms | how long to wait for a lock |
CREATE FUNCTION drop_time_partition(of_table text, number bigint, lock_timeout_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $function$
#variable_conflict use_variable
BEGIN
    IF of_table NOT IN ('tombstones', 'outcomes') THEN
        RAISE 'no table that is partitioned by time: %', of_table;
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    DELETE FROM time_partitions AS p WHERE p.of_table = drop_time_partition.of_table
        AND p.number = drop_time_partition.number AND p.is_closed;
    IF FOUND THEN
        EXECUTE format('DROP TABLE %I', of_table || '_' || number);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$function$;
REVOKE ALL ON FUNCTION drop_time_partition(text, bigint, integer) FROM PUBLIC;
