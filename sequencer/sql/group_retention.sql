-- Ends offsets and groups that were unused for long, or whose topic is gone. Each step examines a page in key
-- order, locks the groups in which something may be due (SKIP LOCKED: a group in use is skipped until the
-- next pass), and judges again in a statement with a later snapshot. Laterals make every look-up an index
-- scan, whatever the size of the tables.

-- name: lock_groups_of_page
-- A recent commit is not due for its age, whatever its group. That is enough to choose the groups to lock.
WITH looked AS MATERIALIZED (
    SELECT group_id, topic_id, partition, committed_at FROM committed_offsets
    WHERE (group_id, topic_id, partition) > (%(after_group_id)s::text, %(after_topic_id)s::uuid,
        %(after_partition)s::integer)
    ORDER BY group_id, topic_id, partition LIMIT %(cap)s::integer
), suspect AS MATERIALIZED (
    SELECT DISTINCT group_id FROM looked CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM topics WHERE topic_id = looked.topic_id AND deleted_at IS NULL
            OFFSET 0) AS is_live) AS topic
    WHERE NOT is_live OR committed_at < statement_timestamp()
        - make_interval(secs => %(retention_s)s::double precision)
), locked AS MATERIALIZED (
    SELECT suspect.group_id FROM suspect CROSS JOIN LATERAL (
        SELECT 1 FROM groups WHERE group_id = suspect.group_id
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) AS taken
)
SELECT (SELECT count(*) FROM looked) AS looked_at,
       coalesce((SELECT array_agg(group_id ORDER BY group_id) FROM locked), '{}') AS locked,
       last.group_id, last.topic_id, last.partition
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT group_id, topic_id, partition FROM looked ORDER BY group_id DESC, topic_id DESC, partition DESC
    LIMIT 1) AS last ON true

-- name: forget_offsets
-- As in Kafka (KIP-211): while a group has members, none of its offsets age. From then on all do; offsets
-- committed later (by an operator) age from their commit. In a group that never had members each offset ages
-- from its commit.
WITH due AS MATERIALIZED (
    SELECT o.*, topic.is_live
    FROM unnest(%(group_ids)s::text[]) AS locked (group_id)
    CROSS JOIN LATERAL (
        SELECT empty_since, kind IS DISTINCT FROM 'consumer' AND protocol_type = '' AS is_simple
        FROM groups WHERE group_id = locked.group_id OFFSET 0) AS g
    CROSS JOIN LATERAL (
        SELECT group_id, topic_id, partition, committed_at FROM committed_offsets
        WHERE group_id = locked.group_id
          AND (group_id, topic_id, partition) > (%(after_group_id)s::text, %(after_topic_id)s::uuid,
              %(after_partition)s::integer)
          AND (group_id, topic_id, partition) <=
              (%(to_group_id)s::text, %(to_topic_id)s::uuid, %(to_partition)s::integer)
        OFFSET 0) AS o
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM topics WHERE topic_id = o.topic_id AND deleted_at IS NULL
            OFFSET 0) AS is_live) AS topic
    WHERE NOT is_live OR g.empty_since IS NOT NULL
        AND CASE WHEN g.is_simple THEN o.committed_at ELSE greatest(g.empty_since, o.committed_at) END
            < statement_timestamp() - make_interval(secs => %(retention_s)s::double precision)
), gone AS (
    DELETE FROM committed_offsets AS o USING due
    WHERE o.group_id = due.group_id AND o.topic_id = due.topic_id AND o.partition = due.partition
    RETURNING due.is_live
)
SELECT count(*) FILTER (WHERE is_live) AS unused, count(*) FILTER (WHERE NOT is_live) AS of_deleted_topics
FROM gone

-- name: lock_idle_groups
WITH looked AS MATERIALIZED (
    SELECT group_id, empty_since, claimed_at FROM groups
    WHERE group_id > %(after)s::text ORDER BY group_id LIMIT %(cap)s::integer
), locked AS MATERIALIZED (
    SELECT looked.group_id FROM looked CROSS JOIN LATERAL (
        SELECT 1 FROM groups WHERE group_id = looked.group_id OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) AS taken
    WHERE greatest(looked.empty_since, looked.claimed_at)
            < statement_timestamp() - make_interval(secs => %(grace_s)s::double precision)
        AND looked.empty_since IS NOT NULL
        AND NOT EXISTS (SELECT FROM committed_offsets WHERE group_id = looked.group_id OFFSET 0)
        AND NOT EXISTS (SELECT FROM pending_offsets WHERE group_id = looked.group_id OFFSET 0)
)
SELECT (SELECT count(*) FROM looked) AS looked_at,
    (SELECT group_id FROM looked ORDER BY group_id DESC LIMIT 1) AS last,
       coalesce((SELECT array_agg(group_id ORDER BY group_id) FROM locked), '{}') AS locked

-- name: remove_groups
WITH gone AS (
    DELETE FROM groups AS g USING unnest(%(group_ids)s::text[]) AS locked (group_id)
    WHERE g.group_id = locked.group_id AND g.empty_since IS NOT NULL
        AND greatest(g.empty_since, g.claimed_at)
            < statement_timestamp() - make_interval(secs => %(grace_s)s::double precision)
        AND NOT EXISTS (SELECT FROM committed_offsets AS o WHERE o.group_id = g.group_id)
        AND NOT EXISTS (SELECT FROM pending_offsets AS o WHERE o.group_id = g.group_id)
    RETURNING g.group_id
), members AS (
    DELETE FROM group_members AS m USING gone WHERE m.group_id = gone.group_id
)
SELECT count(*) AS removed FROM gone
