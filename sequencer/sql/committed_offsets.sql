-- Committed offsets: written and deleted under the group's row, read together with its epoch. The functions
-- are in `functions/`.

-- name: commit
SELECT verdicts FROM demand_durability() CROSS JOIN commit_offsets(
    group_ids => %(group_ids)s, commit_groups => %(commit_groups)s, commit_epochs => %(commit_epochs)s,
    commit_generations => %(commit_generations)s, commit_members => %(commit_members)s,
    commit_member_epochs => %(commit_member_epochs)s, offset_commits => %(offset_commits)s,
    offset_topics => %(offset_topics)s,
    offset_partitions => %(offset_partitions)s, offset_values => %(offset_values)s,
    offset_leader_epochs => %(offset_leader_epochs)s, offset_metadata => %(offset_metadata)s)

-- name: fetch
-- One row without a topic for each group that is still its coordinator's (epoch -1: for each existing group),
-- then its offsets, all from one moment. Offsets of a deleted topic are not returned, although they stay
-- until housekeeping.
WITH held AS MATERIALIZED (
    SELECT asked.group_id, asked.everything, asked.number
    FROM unnest(%(group_ids)s::text[], %(coordinator_epochs)s::bigint[],
        %(everything)s::boolean[]) WITH ORDINALITY
         AS asked (group_id, coordinator_epoch, everything, number)
    CROSS JOIN LATERAL (
        SELECT 1 FROM groups AS g
        WHERE g.group_id = asked.group_id AND asked.coordinator_epoch IN (-1, g.coordinator_epoch)
        OFFSET 0) AS stored
), found AS (
    SELECT held.number, o.* FROM held CROSS JOIN LATERAL (
        SELECT topic_id, partition, committed_offset, leader_epoch, metadata FROM committed_offsets
        WHERE group_id = held.group_id OFFSET 0) AS o
    WHERE held.everything
    UNION ALL
    SELECT held.number, o.*
    FROM unnest(%(of_groups)s::integer[], %(topic_ids)s::uuid[], %(partitions)s::integer[]) AS asked (number,
        topic_id, partition)
    JOIN held ON held.number = asked.number
    CROSS JOIN LATERAL (
        SELECT topic_id, partition, committed_offset, leader_epoch, metadata FROM committed_offsets
        WHERE group_id = held.group_id AND topic_id = asked.topic_id AND partition = asked.partition
        OFFSET 0) AS o
)
SELECT number, NULL::uuid AS topic_id, NULL::integer AS partition, NULL::bigint AS committed_offset,
    NULL::integer AS leader_epoch,
       NULL::bytea AS metadata
FROM held
UNION ALL
SELECT found.* FROM found CROSS JOIN LATERAL (
    SELECT 1 FROM topics AS t WHERE t.topic_id = found.topic_id AND t.deleted_at IS NULL OFFSET 0) AS live

-- name: pending
SELECT DISTINCT o.group_id, o.topic_id, o.partition FROM unnest(%(group_ids)s::text[]) AS asked (group_id)
CROSS JOIN LATERAL (
    SELECT group_id, topic_id, partition FROM pending_offsets WHERE group_id = asked.group_id OFFSET 0) AS o

-- name: delete
SELECT delete_offsets(
    %(group_id)s::text, %(coordinator_epoch)s::bigint, %(topic_ids)s::uuid[],
    %(partitions)s::integer[]) AS held
