-- write_group writes what a coordinator changed in a group and its members. It returns false, and writes
-- nothing, if another agent has claimed the group. Statement 1 takes the row, so the next ones see the
-- members as they are.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | written_group | | the group's id |
-- | held_epoch | | the epoch with which the coordinator claimed the group |
-- | new_kind, new_generation, new_state, new_protocol_type, new_document | | the group's new columns |
-- | is_empty | | the group has no members now |
-- | removed_ids | member that left | its id |
-- | member_ids, member_epochs, member_documents | member that changed | its new columns |
CREATE FUNCTION write_group(
    written_group text, held_epoch bigint, new_kind text, new_generation integer, new_state text,
        new_protocol_type text,
    new_document json, is_empty boolean, removed_ids text[], member_ids text[], member_epochs integer[],
    member_documents text[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    UPDATE groups SET kind = new_kind, generation = new_generation, state = new_state,
           protocol_type = new_protocol_type,
           document = new_document,
           empty_since = CASE WHEN is_empty THEN coalesce(empty_since, clock_timestamp()) END
    WHERE group_id = written_group AND coordinator_epoch = held_epoch;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM group_members WHERE group_id = written_group AND member_id = ANY (removed_ids);
    INSERT INTO group_members AS m (group_id, member_id, epoch, document)
    SELECT written_group, given.member_id, given.epoch, given.document::json
    FROM unnest(member_ids, member_epochs, member_documents) AS given (member_id, epoch, document)
    ON CONFLICT (group_id, member_id) DO UPDATE SET epoch = excluded.epoch, document = excluded.document;
    RETURN true;
END
$function$;
