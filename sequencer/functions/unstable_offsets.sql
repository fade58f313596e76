-- unstable_offsets reads the first unstable offset of each partition, -1 for none, in the order given. A
-- partition that does not exist counts as having none.
CREATE FUNCTION unstable_offsets(topic_ids uuid[], partition_numbers integer[]) RETURNS bigint[]
LANGUAGE sql VOLATILE
AS $function$
    SELECT array_agg(coalesce((
        SELECT p.first_unstable_offset FROM partitions AS p
        WHERE p.topic_id = given.topic_id AND p.partition = given.number), -1) ORDER BY given.place)
    FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, number, place)
$function$;
