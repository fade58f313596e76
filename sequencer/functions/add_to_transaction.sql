-- add_to_transaction adds partitions and groups to a transaction, which begins with the first
-- (AddPartitionsToTxn, AddOffsetsToTxn). It locks the transaction's row FOR SHARE: only its end must wait.
-- May be repeated. If a partition does not exist, none is added.
--
-- | parameter | meaning |
-- |---|---|
-- | id, of_producer, of_epoch | the transactional id, and the producer that has it |
-- | topic_ids, partition_numbers | the partitions, in primary-key order |
-- | group_ids | the groups, in order |
-- | only_verifies | adds nothing: tells which partitions are in the transaction |
--
-- Returns one row: `verdict` 0 done; 1 fenced; 2 no such producer of this id. `missing`: the numbers, from 1,
-- of the partitions that do not exist, or that are not in the transaction.
CREATE FUNCTION add_to_transaction(id text, of_producer bigint, of_epoch integer, topic_ids uuid[],
    partition_numbers integer[], group_ids text[], only_verifies boolean)
RETURNS TABLE (verdict integer, missing integer[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_producer bigint;
    own_epoch integer;
    last_producer bigint;
    expires timestamptz;
    not_there integer[];
BEGIN
    SELECT t.producer_id, t.producer_epoch, t.last_producer_id,
        clock_timestamp() + make_interval(secs => t.timeout_ms / 1000.0)
    INTO own_producer, own_epoch, last_producer, expires
    FROM transactions AS t WHERE t.transactional_id = id FOR SHARE;
    IF own_producer IS DISTINCT FROM of_producer OR own_epoch <> of_epoch THEN
        RETURN QUERY SELECT CASE WHEN own_producer = of_producer OR last_producer = of_producer THEN 1
            ELSE 2 END, '{}'::integer[];
        RETURN;
    END IF;
    SELECT coalesce(array_agg(given.place::integer ORDER BY given.place), '{}') INTO not_there
    FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, number, place)
    LEFT JOIN LATERAL (SELECT 1 AS is_there FROM partitions AS p
        WHERE NOT only_verifies AND p.topic_id = given.topic_id AND p.partition = given.number
            AND p.state = 'live'
        UNION ALL SELECT 1 FROM transaction_partitions AS t
        WHERE only_verifies AND t.producer_id = of_producer AND t.topic_id = given.topic_id
            AND t.partition = given.number) AS found ON true
    WHERE found.is_there IS NULL;
    IF NOT only_verifies AND cardinality(not_there) = 0 THEN
        INSERT INTO transaction_partitions (producer_id, topic_id, partition, expires_at)
        SELECT of_producer, given.topic_id, given.number, expires
        FROM unnest(topic_ids, partition_numbers) AS given (topic_id, number)
        ORDER BY given.topic_id, given.number ON CONFLICT (producer_id, topic_id, partition) DO NOTHING;
        INSERT INTO transaction_groups (producer_id, group_id, expires_at)
        SELECT of_producer, given.group_id, expires FROM unnest(group_ids) AS given (group_id)
        ORDER BY given.group_id ON CONFLICT (producer_id, group_id) DO NOTHING;
    END IF;
    RETURN QUERY SELECT 0, not_there;
END
$function$;
