-- name: colliding_topic
-- Names that differ only in '.' and '_' are refused, as in Kafka, whose metrics cannot distinguish them. Two
-- that are made at the same moment pass, which is harmless. In order, with a limit, Postgres would look
-- through the names.
SELECT name FROM topics
WHERE deleted_at IS NULL AND translate(name, '.', '_') = translate(%(name)s::text, '.', '_')
    AND name <> %(name)s::text

-- name: create_topic
-- The partial unique index takes the name, so one of two creators gets a unique violation.
WITH topic AS (
    INSERT INTO topics (topic_id, name, partition_count, config)
    VALUES (%(topic_id)s::uuid, %(name)s::text, %(partition_count)s::integer, %(config)s::jsonb)
    RETURNING topic_id, name, partition_count, config, created_at
), made AS (
    INSERT INTO partitions (topic_id, partition)
    SELECT topic_id, generate_series(0, partition_count - 1) FROM topic
)
SELECT * FROM topic

-- name: mark_topic_deleted
UPDATE topics SET deleted_at = clock_timestamp()
WHERE name = %(name)s::text AND deleted_at IS NULL
RETURNING topic_id, name, partition_count, config, created_at

-- name: mark_topic_deleted_by_id
-- By id, so that a new topic of the same name is left alone.
UPDATE topics SET deleted_at = clock_timestamp()
WHERE topic_id = %(topic_id)s::uuid AND deleted_at IS NULL
RETURNING topic_id, name, partition_count, config, created_at

-- name: lock_partitions_of_topic
-- In primary-key order, as in the commit. An UPDATE alone would lock rows in the order in which it finds
-- them.
SELECT 1 FROM partitions WHERE topic_id = %(topic_id)s::uuid ORDER BY partition FOR NO KEY UPDATE

-- name: stop_partitions_of_topic
UPDATE partitions SET state = 'deleting', coordinate_epoch = coordinate_epoch + 1
WHERE topic_id = %(topic_id)s::uuid AND state = 'live'

-- name: list_topics
SELECT topic_id, name, partition_count, config, created_at FROM topics WHERE deleted_at IS NULL ORDER BY name

-- name: list_topics_of_tenants
SELECT t.topic_id, t.name, t.partition_count, t.config, t.created_at, asked.tenant
FROM unnest(%(tenants)s::text[]) AS asked (tenant)
CROSS JOIN LATERAL (
    SELECT * FROM topics
    WHERE deleted_at IS NULL AND strpos(name, '~') > 0
        AND name >= (asked.tenant || '~') COLLATE "C" AND name < (asked.tenant || chr(127)) COLLATE "C"
    ORDER BY name COLLATE "C") AS t

-- name: topic_changes
-- The number of changes, and the topics changed since :since if they are at most :most.
SELECT counted.changes, changed.change, changed.topic_id, changed.name
FROM topic_changes AS counted LEFT JOIN changed_topics AS changed
    ON changed.change > %(since)s::bigint
        AND counted.changes - %(since)s::bigint BETWEEN 1 AND %(most)s::bigint
ORDER BY changed.change

-- name: topics_by_name
SELECT topic_id, name, partition_count, config, created_at FROM topics
WHERE name = ANY(%(names)s::text[]) AND deleted_at IS NULL

-- name: topics_by_id
SELECT topic_id, name, partition_count, config, created_at FROM topics
WHERE topic_id = ANY(%(topic_ids)s::uuid[]) AND deleted_at IS NULL

-- name: lock_topic
SELECT topic_id, partition_count, config FROM topics
WHERE name = %(name)s::text AND deleted_at IS NULL FOR NO KEY UPDATE

-- name: add_partitions
WITH made AS (
    INSERT INTO partitions (topic_id, partition)
    SELECT %(topic_id)s::uuid, generate_series(%(first)s::integer, %(total)s::integer - 1)
)
UPDATE topics SET partition_count = %(total)s::integer WHERE topic_id = %(topic_id)s::uuid
RETURNING topic_id, name, partition_count, config, created_at

-- name: alter_config
UPDATE topics SET config = (config || %(set)s::jsonb) - %(remove)s::text[]
WHERE topic_id = %(topic_id)s::uuid
RETURNING topic_id, name, partition_count, config, created_at
