-- end_transactions ends several transactions in one (see end_transaction). They share a round trip and a
-- flush of the log.
--
-- It locks the rows of all of them first, each kind in its order, so that two calls never wait for each
-- other. The order of the arrays does not matter.
--
-- Parameters: as of end_transaction, an element for each end. Returns a row for each, with its `place`
-- from 1.
CREATE FUNCTION end_transactions(
    ids text[], of_producers bigint[], of_epochs integer[], are_commits boolean[], causes text[],
    marker_segments uuid[], marker_keys text[], markers_bytes integer[])
RETURNS TABLE (place integer, verdict integer, producer_id bigint, producer_epoch integer, topic_ids uuid[],
    partition_numbers integer[], marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_hashagg = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    number integer;
BEGIN
    IF cardinality(ids) > 1 THEN
        PERFORM 1 FROM transactions AS t WHERE t.transactional_id = ANY (ids)
        ORDER BY t.producer_id FOR NO KEY UPDATE;

        PERFORM 1 FROM groups AS g
        WHERE g.group_id = ANY (ARRAY(SELECT o.group_id FROM pending_offsets AS o
            WHERE o.producer_id = ANY (of_producers)))
        ORDER BY g.group_id FOR NO KEY UPDATE;

        PERFORM 1 FROM (SELECT DISTINCT t.topic_id, t.partition FROM transaction_partitions AS t
            WHERE t.producer_id = ANY (of_producers) AND t.first_offset IS NOT NULL
            ORDER BY t.topic_id, t.partition) AS given
        CROSS JOIN LATERAL (SELECT 1 FROM partitions AS p
            WHERE p.topic_id = given.topic_id AND p.partition = given.partition FOR NO KEY UPDATE) AS own;
    END IF;
    FOR number IN 1..cardinality(ids) LOOP
        RETURN QUERY SELECT number, ended.* FROM end_transaction(
            ids[number], of_producers[number], of_epochs[number], are_commits[number], causes[number],
            marker_segments[number], marker_keys[number], markers_bytes[number]) AS ended;
    END LOOP;
END
$function$;
