-- Keys of topics (sequencer/topics/topic_keys.py).

-- name: newest
SELECT topic_id, version, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = %(topic_id)s::uuid ORDER BY version DESC LIMIT 1

-- name: of_version
SELECT topic_id, version, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = %(topic_id)s::uuid AND version = %(version)s::integer

-- name: add
-- The topic's row is locked against its deletion, which also deletes its keys.
INSERT INTO topic_keys (topic_id, version, wrapped_by, wrapped)
SELECT topic_id, %(version)s::integer, %(wrapped_by)s::text, %(wrapped)s::bytea
FROM (
    SELECT topic_id FROM topics WHERE topic_id = %(topic_id)s::uuid AND deleted_at IS NULL FOR SHARE
) AS live
ON CONFLICT (topic_id, version) DO NOTHING
RETURNING topic_id, version, wrapped_by, wrapped

-- name: rewrap
-- Only if no other rewrap came first.
UPDATE topic_keys SET wrapped_by = %(wrapped_by)s::text, wrapped = %(wrapped)s::bytea
WHERE topic_id = %(topic_id)s::uuid AND version = %(version)s::integer AND wrapped = %(before)s::bytea
RETURNING version

-- name: page
SELECT keys.topic_id, keys.version, keys.wrapped_by, keys.wrapped, topics.name, keys.created_at
FROM topic_keys AS keys JOIN topics ON topics.topic_id = keys.topic_id
WHERE (keys.topic_id, keys.version) > (%(topic_id)s::uuid, %(version)s::integer)
ORDER BY keys.topic_id, keys.version LIMIT %(cap)s::integer

-- name: destroy
DELETE FROM topic_keys WHERE topic_id = %(topic_id)s::uuid
