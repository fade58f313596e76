-- name: new_producer_id
SELECT nextval('producer_ids') AS producer_id

-- name: expire_producer_state
-- Rows a commit is updating are skipped; one that was updated while we looked is seen as it is now, and stays.
WITH expired AS (
    DELETE FROM producer_state AS gone USING (
        SELECT topic_id, partition, producer_id FROM producer_state
        WHERE updated_at < clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision)
        ORDER BY topic_id, partition, producer_id LIMIT %(cap)s::integer FOR UPDATE SKIP LOCKED) AS old
    WHERE (gone.topic_id, gone.partition, gone.producer_id) = (old.topic_id, old.partition, old.producer_id)
    RETURNING 1)
SELECT count(*) AS expired FROM expired
