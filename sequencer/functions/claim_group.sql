-- claim_group makes an agent the coordinator of a group and returns what it must know. No row: there is no
-- such group, and `may_create` is false.
--
-- Statement 1 raises the epoch. That waits for whatever the last coordinator has in flight. Statement 2
-- takes its snapshot afterwards. One statement would read the group's row after the wait, but its members
-- as they were before.
--
-- | parameter | meaning |
-- |---|---|
-- | claimed_group | the group's id |
-- | node_id | of the agent |
-- | may_create | make the group if there is none |
CREATE FUNCTION claim_group(claimed_group text, node_id integer, may_create boolean)
RETURNS TABLE (coordinator_epoch bigint, kind text, generation integer, state text, protocol_type text,
               document json,
               member_ids text[], member_epochs integer[], member_documents json[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    IF may_create THEN
        INSERT INTO groups AS g (group_id, coordinator) VALUES (claimed_group, node_id)
        ON CONFLICT (group_id) DO UPDATE
        SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'),
            claimed_at = clock_timestamp();
    ELSE
        UPDATE groups SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'),
            claimed_at = clock_timestamp()
        WHERE group_id = claimed_group;
    END IF;
    RETURN QUERY
    SELECT g.coordinator_epoch, g.kind, g.generation, g.state, g.protocol_type, g.document, m.ids, m.epochs,
        m.documents
    FROM groups AS g CROSS JOIN (
        SELECT coalesce(array_agg(member_id), '{}') AS ids, coalesce(array_agg(epoch), '{}') AS epochs,
               coalesce(array_agg(document), '{}') AS documents
        FROM group_members WHERE group_id = claimed_group) AS m
    WHERE g.group_id = claimed_group;
END
$function$;
