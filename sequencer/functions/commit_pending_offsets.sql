-- commit_pending_offsets takes a group's offsets into a transaction (TxnOffsetCommit): they are committed
-- when it is. It locks the transaction's row FOR SHARE, then does what commit_offsets does for one commit.
--
-- | parameter | meaning |
-- |---|---|
-- | id, of_producer, of_epoch | the transactional id, and the producer that has it |
-- | adds_group | the request adds its group itself (KIP-890); else it was added before |
-- | all others | those of commit_offsets, for one group and one commit |
--
-- Returns one row with `verdict`: 0 to 4 as in commit_offsets; 5 fenced; 6 no such producer of this id; 7 the
-- group is not in an open transaction.
CREATE FUNCTION commit_pending_offsets(
    id text, of_producer bigint, of_epoch integer, adds_group boolean,
    group_ids text[],
    commit_groups integer[], commit_epochs bigint[], commit_generations integer[], commit_members text[],
    commit_member_epochs integer[],
    offset_commits integer[], offset_topics uuid[], offset_partitions integer[], offset_values bigint[],
    offset_leader_epochs integer[], offset_metadata bytea[])
RETURNS TABLE (verdict integer)
LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_column
DECLARE
    own transactions%ROWTYPE;
    found_verdict integer;
BEGIN
    SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR SHARE;
    IF own.producer_id IS DISTINCT FROM of_producer OR own.producer_epoch <> of_epoch THEN
        RETURN QUERY SELECT CASE WHEN own.producer_id = of_producer OR own.last_producer_id = of_producer
            THEN 5 ELSE 6 END;
        RETURN;
    END IF;
    IF NOT adds_group AND NOT EXISTS (SELECT FROM transaction_groups AS g
        WHERE g.producer_id = of_producer AND g.group_id = group_ids[1]) THEN
        RETURN QUERY SELECT 7;
        RETURN;
    END IF;
    SELECT judged.verdicts[1] INTO found_verdict FROM commit_offsets(
        group_ids, commit_groups, commit_epochs, commit_generations, commit_members, commit_member_epochs,
        offset_commits, offset_topics, offset_partitions, offset_values, offset_leader_epochs,
        offset_metadata, of_producer) AS judged;
    IF found_verdict = 0 THEN
        INSERT INTO transaction_groups (producer_id, group_id, expires_at)
        VALUES (of_producer, group_ids[1],
            clock_timestamp() + make_interval(secs => own.timeout_ms / 1000.0))
        ON CONFLICT (producer_id, group_id) DO NOTHING;
    END IF;
    RETURN QUERY SELECT found_verdict;
END
$function$;
