-- kept_outcome returns the outcome of a segment whose row is gone. It is a function, so that the partitions
-- of `outcomes` are looked at only when it is called: once in a while, by a repeated commit.
CREATE FUNCTION kept_outcome(id uuid) RETURNS TABLE (object_key text, outcome bigint[])
LANGUAGE plpgsql STABLE
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT o.object_key, o.outcome FROM outcomes AS o WHERE o.segment_id = id LIMIT 1;
END
$function$;
