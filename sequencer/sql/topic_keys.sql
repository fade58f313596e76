-- Keys of topics (sequencer/topics/topic_keys.py).

-- name: newest
SELECT topic_id, version, key_id, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = %(topic_id)s::uuid ORDER BY version DESC LIMIT 1

-- name: of_version
SELECT topic_id, version, key_id, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = %(topic_id)s::uuid AND version = %(version)s::integer

-- name: of_id
SELECT topic_id, version, key_id, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = %(topic_id)s::uuid AND key_id = %(key_id)s::bigint

-- name: reserve
INSERT INTO key_copies_to_delete (topic_id, key_id, deleted_at)
VALUES (%(topic_id)s::uuid, %(key_id)s::bigint, clock_timestamp())
ON CONFLICT DO NOTHING

-- name: add
-- The topic's row is locked against its deletion, which also deletes its keys. An old reservation counts no
-- more, because its copy may be deleted.
WITH added AS (
    INSERT INTO topic_keys (topic_id, version, key_id, wrapped_by, wrapped)
    SELECT topic_id, %(version)s::integer, %(key_id)s::bigint, %(wrapped_by)s::text, %(wrapped)s::bytea
    FROM (
        SELECT topic_id FROM topics WHERE topic_id = %(topic_id)s::uuid AND deleted_at IS NULL FOR SHARE
    ) AS live
    WHERE EXISTS (
        SELECT FROM key_copies_to_delete
        WHERE topic_id = %(topic_id)s::uuid AND key_id = %(key_id)s::bigint
            AND deleted_at > clock_timestamp() - make_interval(secs => %(reserved_s)s)
    )
    ON CONFLICT DO NOTHING
    RETURNING topic_id, key_id
)
DELETE FROM key_copies_to_delete AS reserved USING added
WHERE reserved.topic_id = added.topic_id AND reserved.key_id = added.key_id

-- name: known
-- Copies that have a reason to be in the bucket.
SELECT topic_id, key_id
FROM unnest(%(topic_ids)s::uuid[], %(key_ids)s::bigint[]) AS asked (topic_id, key_id)
WHERE EXISTS (SELECT FROM topic_keys AS k WHERE (k.topic_id, k.key_id) = (asked.topic_id, asked.key_id))
    OR EXISTS (
        SELECT FROM key_copies_to_delete AS d WHERE (d.topic_id, d.key_id) = (asked.topic_id, asked.key_id)
    )

-- name: rewrap
-- Only if no other rewrap came first.
UPDATE topic_keys SET wrapped_by = %(wrapped_by)s::text, wrapped = %(wrapped)s::bytea
WHERE topic_id = %(topic_id)s::uuid AND version = %(version)s::integer AND wrapped = %(before)s::bytea
RETURNING version

-- name: page
SELECT keys.topic_id, keys.version, keys.key_id, keys.wrapped_by, keys.wrapped, topics.name,
    keys.created_at
FROM topic_keys AS keys JOIN topics ON topics.topic_id = keys.topic_id
WHERE (keys.topic_id, keys.version) > (%(topic_id)s::uuid, %(version)s::integer)
ORDER BY keys.topic_id, keys.version LIMIT %(cap)s::integer

-- name: destroy
WITH gone AS (DELETE FROM topic_keys WHERE topic_id = %(topic_id)s::uuid RETURNING topic_id, key_id)
INSERT INTO key_copies_to_delete (topic_id, key_id) SELECT topic_id, key_id FROM gone ON CONFLICT DO NOTHING

-- name: copies_to_delete
-- Those that were never deleted come first.
SELECT topic_id, key_id, deleted_at IS NOT NULL AS is_last FROM key_copies_to_delete
WHERE deleted_at IS NULL OR deleted_at < clock_timestamp() - make_interval(secs => %(late_write_window_s)s)
ORDER BY deleted_at IS NOT NULL, topic_id, key_id LIMIT %(cap)s::integer

-- name: note_deleted
UPDATE key_copies_to_delete AS d SET deleted_at = clock_timestamp()
FROM unnest(%(topic_ids)s::uuid[], %(key_ids)s::bigint[]) AS done (topic_id, key_id)
WHERE d.topic_id = done.topic_id AND d.key_id = done.key_id AND d.deleted_at IS NULL

-- name: forget_copies
DELETE FROM key_copies_to_delete AS d
USING unnest(%(topic_ids)s::uuid[], %(key_ids)s::bigint[]) AS done (topic_id, key_id)
WHERE d.topic_id = done.topic_id AND d.key_id = done.key_id

-- name: topics_of
SELECT topic_id, deleted_at IS NULL AS is_live FROM topics WHERE topic_id = ANY(%(topic_ids)s::uuid[])

-- name: remove_of_no_live_topic
DELETE FROM topic_keys AS k
WHERE NOT EXISTS (SELECT FROM topics AS t WHERE t.topic_id = k.topic_id AND t.deleted_at IS NULL)

-- name: of_topics
SELECT topic_id, version, key_id, wrapped_by, wrapped FROM topic_keys
WHERE topic_id = ANY(%(topic_ids)s::uuid[]) ORDER BY topic_id, version

-- name: every
-- After a recovery, which needs no bound: it holds no more than the keys' ids and 100 bytes each.
SELECT topic_id, version, key_id, wrapped_by, wrapped FROM topic_keys ORDER BY topic_id, version

-- name: take_copy
-- Of a key that the bucket has. A copy is written before its row, so it is the newer one. An older database
-- may have its reservation still: the copy would be deleted for it.
WITH done AS (
    DELETE FROM key_copies_to_delete WHERE topic_id = %(topic_id)s::uuid AND key_id = %(key_id)s::bigint
)
INSERT INTO topic_keys (topic_id, version, key_id, wrapped_by, wrapped)
VALUES (%(topic_id)s::uuid, %(version)s::integer, %(key_id)s::bigint, %(wrapped_by)s::text,
    %(wrapped)s::bytea)
ON CONFLICT (topic_id, key_id) DO UPDATE SET wrapped_by = EXCLUDED.wrapped_by, wrapped = EXCLUDED.wrapped

-- name: destroy_copy
INSERT INTO key_copies_to_delete (topic_id, key_id) VALUES (%(topic_id)s::uuid, %(key_id)s::bigint)
ON CONFLICT (topic_id, key_id) DO UPDATE SET deleted_at = NULL
