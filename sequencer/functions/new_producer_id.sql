-- new_producer_id draws a producer id that was never given out. It says when it was given out, for
-- commit_segments. Ids run ahead of the clock, so that none is given out twice.
CREATE FUNCTION new_producer_id() RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
    UPDATE producer_ids
    SET last_id = greatest(last_id + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
    RETURNING last_id
$function$;
