-- history_continues returns whether a job may add to the state that the history of a partition is: the last
-- record of each key. It may not where history has something else, or where records went that it has not
-- seen. Tombstones may be among them, and keys that are deleted would stay. `gone_before` are those that had
-- gone when the state was begun, `gone_to` those that have gone now.
CREATE FUNCTION history_continues(
    log_start bigint, compacted_to bigint, state_to bigint, gone_before bigint, gone_to bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT coalesce(state_to = compacted_to AND log_start <= compacted_to AND gone_before >= 0
        AND coalesce(gone_to, 0) <= greatest(compacted_to, gone_before), false)
$function$;
