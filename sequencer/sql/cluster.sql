-- name: cluster_id
SELECT cluster_id FROM cluster

-- name: migration
SELECT max(number) AS migration FROM migrations

-- name: store
SELECT cluster_id, store_id, store_name FROM cluster

-- name: lock_store
-- Held while the identity object is written, once in a cluster's life. If agents start at once with different
-- stores, one is refused.
SELECT cluster_id, store_id, store_name FROM cluster FOR NO KEY UPDATE

-- name: newest_objects
-- For a database that was filled before it knew its store, or was restored from such a time.
SELECT object_key FROM segments WHERE state = 'committed' ORDER BY segment_id DESC LIMIT 3

-- name: set_store
UPDATE cluster SET store_id = %(store_id)s::text, store_name = %(store_name)s::text
