-- delete_group deletes a group with its offsets, pending ones too, if it has no members. It returns
-- `deleted`, `not empty` or `not coordinator`. It locks the row first: an offset commit is then either seen
-- and deleted, or finds no group.
--
-- | parameter | meaning |
-- |---|---|
-- | deleted_group | the group's id |
-- | held_epoch | the epoch with which the coordinator claimed the group |
CREATE FUNCTION delete_group(deleted_group text, held_epoch bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
DECLARE
    since timestamptz;
BEGIN
    SELECT empty_since INTO since FROM groups WHERE group_id = deleted_group
        AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'not coordinator';
    ELSIF since IS NULL THEN
        RETURN 'not empty';
    END IF;
    DELETE FROM committed_offsets WHERE group_id = deleted_group;
    DELETE FROM pending_offsets WHERE group_id = deleted_group;
    DELETE FROM group_members WHERE group_id = deleted_group;
    DELETE FROM groups WHERE group_id = deleted_group;
    RETURN 'deleted';
END
$function$;
