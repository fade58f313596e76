-- delete_offsets deletes some offsets of a group, pending ones too. It returns false, and deletes nothing,
-- if another agent has claimed the group.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | of_group | | the group's id |
-- | held_epoch | | the epoch with which the coordinator claimed the group |
-- | topic_ids, partition_numbers | offset | the partition |
CREATE FUNCTION delete_offsets(of_group text, held_epoch bigint, topic_ids uuid[],
    partition_numbers integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    PERFORM 1 FROM groups WHERE group_id = of_group AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM committed_offsets AS o USING unnest(topic_ids, partition_numbers) AS given (topic_id,
        partition)
    WHERE o.group_id = of_group AND o.topic_id = given.topic_id AND o.partition = given.partition;
    DELETE FROM pending_offsets AS o USING unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
    WHERE o.group_id = of_group AND o.topic_id = given.topic_id AND o.partition = given.partition;
    RETURN true;
END
$function$;
