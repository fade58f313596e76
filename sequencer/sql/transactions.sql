-- Transactions (docs/design/transactions.md). The functions that they call lock the transaction's row first.

-- name: initialize
SELECT verdict, producer_id, producer_epoch FROM demand_durability() CROSS JOIN initialize_transaction(
    id => %(transactional_id)s, with_timeout_ms => %(timeout_ms)s, of_producer => %(producer_id)s,
    of_epoch => %(producer_epoch)s)

-- name: has_room
-- Whether a tenant may have one more transactional id. Counts no further than the limit.
SELECT EXISTS (SELECT FROM transactions WHERE transactional_id = %(transactional_id)s::text)
    OR (SELECT count(*) FROM (
        SELECT FROM transactions
        WHERE transactional_id >= %(prefix)s::text COLLATE "C"
            AND transactional_id < %(behind)s::text COLLATE "C"
        LIMIT may.have) AS found) < may.have AS has_room
FROM (SELECT coalesce(
    (SELECT (limits ->> 'transactional_ids')::bigint FROM tenants
        WHERE name = %(tenant)s::text AND deleted_at IS NULL),
    %(most_of_tenant)s::integer) AS have) AS may

-- name: add
SELECT verdict, missing FROM demand_durability() CROSS JOIN add_to_transaction(
    id => %(transactional_id)s, of_producer => %(producer_id)s, of_epoch => %(producer_epoch)s,
    topic_ids => %(topic_ids)s, partition_numbers => %(partitions)s, group_ids => %(group_ids)s,
    only_verifies => %(only_verifies)s)

-- name: end
-- A row for each end, in order.
SELECT verdict, producer_id, producer_epoch, topic_ids, partition_numbers, marker_offsets, first_offsets,
    first_unstables
FROM demand_durability() CROSS JOIN end_transactions(
    ids => %(transactional_ids)s, of_producers => %(producer_ids)s, of_epochs => %(producer_epochs)s,
    are_commits => %(are_commits)s::boolean[], causes => %(causes)s, marker_segments => %(marker_segments)s,
    marker_keys => %(marker_keys)s, markers_bytes => %(markers_bytes)s)
ORDER BY place

-- name: commit_offsets
SELECT verdict FROM demand_durability() CROSS JOIN commit_pending_offsets(
    id => %(transactional_id)s, of_producer => %(producer_id)s, of_epoch => %(producer_epoch)s,
    adds_group => %(adds_group)s,
    group_ids => %(group_ids)s, commit_groups => %(commit_groups)s, commit_epochs => %(commit_epochs)s,
    commit_generations => %(commit_generations)s, commit_members => %(commit_members)s,
    commit_member_epochs => %(commit_member_epochs)s,
    offset_commits => %(offset_commits)s, offset_topics => %(offset_topics)s,
    offset_partitions => %(offset_partitions)s, offset_values => %(offset_values)s,
    offset_leader_epochs => %(offset_leader_epochs)s, offset_metadata => %(offset_metadata)s)

-- name: expired
-- Open transactions whose time has run out, at most :cap. The first of a transaction's rows tells.
SELECT DISTINCT t.transactional_id, t.producer_id, t.producer_epoch
FROM (
    (SELECT producer_id FROM transaction_partitions WHERE expires_at < (SELECT clock_timestamp())
        ORDER BY expires_at LIMIT %(cap)s)
    UNION ALL
    (SELECT producer_id FROM transaction_groups WHERE expires_at < (SELECT clock_timestamp())
        ORDER BY expires_at LIMIT %(cap)s)) AS due
CROSS JOIN LATERAL (SELECT * FROM transactions WHERE producer_id = due.producer_id OFFSET 0) AS t
LIMIT %(cap)s

-- name: adopt
-- A transactional id for an open transaction whose own row is gone. Nothing in Tidelog leaves one behind; a
-- person who deletes rows may. Without an id nothing could end it.
INSERT INTO transactions AS t (transactional_id, producer_id, producer_epoch, timeout_ms)
SELECT 'hanging-' || %(producer_id)s::bigint, %(producer_id)s, %(producer_epoch)s, 0
WHERE EXISTS (SELECT FROM transaction_partitions WHERE producer_id = %(producer_id)s)
ON CONFLICT DO NOTHING
RETURNING t.transactional_id, t.producer_id, t.producer_epoch

-- name: lock_unused
-- A page of :cap rows in order: those unused for long are locked. Rows that someone holds are left out.
WITH looked AS MATERIALIZED (
    SELECT transactional_id, changed_at FROM transactions WHERE transactional_id > %(after)s
    ORDER BY transactional_id LIMIT %(cap)s
), locked AS MATERIALIZED (
    SELECT t.transactional_id FROM looked CROSS JOIN LATERAL (
        SELECT transactional_id FROM transactions
        WHERE transactional_id = looked.transactional_id OFFSET 0 FOR UPDATE SKIP LOCKED) AS t
    WHERE looked.changed_at < clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision)
)
SELECT (SELECT count(*) FROM looked) AS looked_at,
    (SELECT max(transactional_id) FROM looked) AS last_id,
    coalesce((SELECT array_agg(transactional_id) FROM locked), '{}') AS locked

-- name: forget
-- A statement with a later snapshot: a transaction may have begun just before the lock, and beginning changes
-- nothing in this row [raced]. Or the id was used.
WITH gone AS (
    DELETE FROM transactions AS t
    WHERE t.transactional_id = ANY (%(transactional_ids)s::text[])
        AND t.changed_at < clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision)
        AND NOT EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = t.producer_id)
        AND NOT EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = t.producer_id)
    RETURNING 1
)
SELECT count(*) AS forgotten FROM gone

-- name: forget_aborted
-- A page of :cap rows in order. A row too many does no harm, so no partition is locked.
WITH looked AS MATERIALIZED (
    SELECT topic_id, partition, last_offset FROM aborted_transactions
    WHERE (topic_id, partition, last_offset)
        > (%(after_topic_id)s::uuid, %(after_partition)s::integer, %(after_offset)s::bigint)
    ORDER BY topic_id, partition, last_offset LIMIT %(cap)s
), passed AS MATERIALIZED (
    SELECT looked.* FROM looked
    LEFT JOIN LATERAL (
        SELECT log_start_offset FROM partitions
        WHERE topic_id = looked.topic_id AND partition = looked.partition AND state = 'live' OFFSET 0) AS p
        ON true
    WHERE p.log_start_offset IS NULL OR looked.last_offset < p.log_start_offset
), gone AS (
    DELETE FROM aborted_transactions AS a USING passed
    WHERE a.topic_id = passed.topic_id AND a.partition = passed.partition
        AND a.last_offset = passed.last_offset
    RETURNING 1
)
SELECT (SELECT count(*) FROM looked) AS looked_at, (SELECT count(*) FROM gone) AS forgotten,
    last.topic_id, last.partition, last.last_offset
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT * FROM looked ORDER BY topic_id DESC, partition DESC, last_offset DESC LIMIT 1) AS last ON true

-- name: describe
SELECT t.*, (extract(epoch FROM o.expires_at) * 1000)::bigint - t.timeout_ms AS started_ms,
    o.expires_at IS NOT NULL AS is_open, o.topic_ids, o.partitions
FROM transactions AS t
CROSS JOIN LATERAL (
    SELECT min(p.expires_at) AS expires_at,
        array_agg(p.topic_id) FILTER (WHERE p.topic_id IS NOT NULL) AS topic_ids,
        array_agg(p.partition) FILTER (WHERE p.topic_id IS NOT NULL) AS partitions
    FROM (
        SELECT expires_at, topic_id, partition FROM transaction_partitions WHERE producer_id = t.producer_id
        UNION ALL
        SELECT expires_at, NULL, NULL FROM transaction_groups WHERE producer_id = t.producer_id) AS p) AS o
WHERE t.transactional_id = ANY (%(transactional_ids)s::text[])

-- name: list
-- A page in the order of ids.
SELECT t.transactional_id, t.producer_id, t.ended,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    (extract(epoch FROM o.expires_at) * 1000)::bigint - t.timeout_ms AS started_ms
FROM transactions AS t
CROSS JOIN LATERAL (
    SELECT min(p.expires_at) AS expires_at FROM (
        SELECT expires_at FROM transaction_partitions WHERE producer_id = t.producer_id
        UNION ALL
        SELECT expires_at FROM transaction_groups WHERE producer_id = t.producer_id) AS p) AS o
WHERE t.transactional_id > %(after)s
ORDER BY t.transactional_id LIMIT %(cap)s

-- name: list_of_producers
SELECT t.transactional_id, t.producer_id, t.ended,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms,
    (extract(epoch FROM o.expires_at) * 1000)::bigint - t.timeout_ms AS started_ms
FROM unnest(%(producer_ids)s::bigint[]) AS asked (producer_id)
JOIN transactions AS t USING (producer_id)
CROSS JOIN LATERAL (
    SELECT min(p.expires_at) AS expires_at FROM (
        SELECT expires_at FROM transaction_partitions WHERE producer_id = t.producer_id
        UNION ALL
        SELECT expires_at FROM transaction_groups WHERE producer_id = t.producer_id) AS p) AS o
ORDER BY t.transactional_id

-- name: by_producer
SELECT transactional_id, producer_id, producer_epoch FROM transactions
WHERE producer_id = ANY (%(producer_ids)s::bigint[])

-- name: open_offsets
-- Where the open transactions of producers begin in a partition.
SELECT producer_id, first_offset FROM transaction_partitions
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND first_offset IS NOT NULL
