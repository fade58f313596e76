-- history_goes_on_at returns the offset from which on a partition's records are not in its history yet. The
-- history of a compacted topic (`is_state`) begins with the log again where it cannot continue.
CREATE FUNCTION history_goes_on_at(
    is_state boolean, log_start bigint, compacted_to bigint, state_to bigint, gone_before bigint,
    gone_to bigint
) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT CASE WHEN is_state
            AND NOT history_continues(log_start, compacted_to, state_to, gone_before, gone_to)
        THEN log_start ELSE greatest(compacted_to, log_start) END
$function$;
