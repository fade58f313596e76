-- commit_offsets applies the offset commits of many groups at once.
--
-- Statement 1 only locks the groups' rows, by id. It is a PERFORM of a locking SELECT, which a planner
-- cannot drop. Statement 2 takes its snapshot afterwards, and so sees epoch, generation and members as the
-- last holder of the locks left them. Without the lock, a commit could be judged before a take-over and
-- written after it. One statement would see the members as they were before its wait [raced]. Every writer
-- of a group's offsets holds the group's row, so the offsets that statement 2 finds do not move until it
-- ends.
--
-- All numbers count from 1.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | group_ids | group | the distinct groups |
-- | commit_groups | commit | number of its group |
-- | commit_epochs | commit | the epoch with which the coordinator claimed the group |
-- | commit_generations | commit | the generation that must hold; -1: any |
-- | commit_members | commit | the member that must be in the group; '': none |
-- | commit_member_epochs | commit | the epoch that this member must have; -1: any |
-- | offset_commits | offset | number of its commit |
-- | offset_topics, offset_partitions | offset | the partition |
-- | offset_values, offset_leader_epochs | offset | what is committed |
-- | offset_metadata | offset | of the client; may be left out if all are empty |
-- | pending_of | | NULL, or the producer whose transaction commits them (commit_pending_offsets.sql) |
--
-- If several accepted commits name a partition of a group, or one names it twice, the last wins.
--
-- Returns one number per commit: 0 done, 1 not coordinator, 2 unknown member, 3 illegal generation, 4 stale
-- member epoch. `sequencer/groups/committed_offsets.py` reads them.
CREATE FUNCTION commit_offsets(
    group_ids text[],
    commit_groups integer[], commit_epochs bigint[], commit_generations integer[], commit_members text[],
    commit_member_epochs integer[],
    offset_commits integer[], offset_topics uuid[], offset_partitions integer[], offset_values bigint[],
    offset_leader_epochs integer[], offset_metadata bytea[], pending_of bigint DEFAULT NULL)
RETURNS TABLE (verdicts integer[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM groups WHERE group_id = ANY (group_ids) ORDER BY group_id FOR NO KEY UPDATE;

    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.number, given.group_id, stored.coordinator_epoch, stored.generation, stored.is_empty
        FROM unnest(group_ids) WITH ORDINALITY AS given (group_id, number)
        CROSS JOIN LATERAL (
            SELECT g.coordinator_epoch, g.generation, g.empty_since IS NOT NULL AS is_empty FROM groups AS g
            WHERE g.group_id = given.group_id OFFSET 0) AS stored
    ), verdict AS MATERIALIZED (
        SELECT given.number, held.number AS of_group, held.group_id, CASE
            WHEN held.coordinator_epoch IS DISTINCT FROM given.epoch THEN 1
            WHEN given.member_id <> '' AND member.epoch IS NULL THEN 2
            WHEN given.member_id = '' AND given.generation < 0 AND NOT held.is_empty
                AND pending_of IS NULL THEN 2
            WHEN given.generation >= 0 AND given.generation <> held.generation THEN 3
            WHEN given.member_epoch >= 0 AND given.member_epoch <> member.epoch THEN 4
            ELSE 0 END AS kind
        FROM unnest(commit_groups, commit_epochs, commit_generations, commit_members,
             commit_member_epochs) WITH ORDINALITY
             AS given (of_group, epoch, generation, member_id, member_epoch, number)
        LEFT JOIN held ON held.number = given.of_group
        LEFT JOIN LATERAL (
            SELECT m.epoch FROM group_members AS m
            WHERE m.group_id = held.group_id AND m.member_id = given.member_id
                AND given.member_id <> '' OFFSET 0) AS member ON true
    ), accepted AS MATERIALIZED (
        SELECT DISTINCT ON (verdict.of_group, given.topic_id, given.partition)
               verdict.group_id, given.topic_id, given.partition, given.committed_offset, given.leader_epoch,
               coalesce(given.metadata, '') AS metadata
        FROM unnest(offset_commits, offset_topics, offset_partitions, offset_values, offset_leader_epochs,
             offset_metadata)
             WITH ORDINALITY AS given (of_commit, topic_id, partition, committed_offset, leader_epoch,
                 metadata, number)
        JOIN verdict ON verdict.number = given.of_commit AND verdict.kind = 0
        ORDER BY verdict.of_group, given.topic_id, given.partition, given.number DESC
    ), written AS (
        INSERT INTO committed_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch,
            metadata)
        SELECT group_id, topic_id, partition, committed_offset, leader_epoch, metadata FROM accepted
        WHERE pending_of IS NULL
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata,
            committed_at = excluded.committed_at
    ), put_aside AS (
        INSERT INTO pending_offsets AS o (producer_id, group_id, topic_id, partition, committed_offset,
            leader_epoch, metadata)
        SELECT pending_of, group_id, topic_id, partition, committed_offset, leader_epoch, metadata
        FROM accepted WHERE pending_of IS NOT NULL
        ON CONFLICT (producer_id, group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata
    )
    SELECT array_agg(kind ORDER BY number) FROM verdict;
END
$function$;
