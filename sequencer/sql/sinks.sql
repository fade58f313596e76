-- Sinks (docs/design/transactions.md#several-as-one). A sink's row is locked before those of transactions.

-- name: commit
-- A row for each transaction, in order, or one row without a place.
SELECT outcome, lost, left_prefix, place, verdict, producer_id, producer_epoch, topic_ids, partition_numbers,
    marker_offsets, first_offsets, first_unstables
FROM demand_durability() CROSS JOIN commit_sink_batch(
    of_sink => %(sink_name)s, of_run => %(run_id)s, of_prefix => %(id_prefix)s, of_query => %(query_id)s,
    of_batch => %(batch_id)s, ids => %(transactional_ids)s, of_producers => %(producer_ids)s,
    of_epochs => %(producer_epochs)s, marker_segments => %(marker_segments)s,
    marker_keys => %(marker_keys)s, markers_bytes => %(markers_bytes)s)
ORDER BY place

-- name: open_under
-- Open transactions whose ids are :id_prefix and two numbers, at most :cap. :id_end is the least text behind
-- all ids with this prefix.
SELECT t.transactional_id, t.producer_id, t.producer_epoch FROM transactions AS t
WHERE t.transactional_id >= %(id_prefix)s AND t.transactional_id < %(id_end)s
    AND substr(t.transactional_id, length(%(id_prefix)s) + 1) ~ '^[0-9]+-[0-9]+$'
    AND (EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = t.producer_id OFFSET 0)
        OR EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = t.producer_id OFFSET 0))
ORDER BY t.transactional_id LIMIT %(cap)s

-- name: owner
-- The run that committed last, '' before the first commit.
SELECT run_id FROM sinks WHERE sink_name = %(sink_name)s

-- name: forget
-- At most :cap rows of each table that were not used for long. Rows that someone holds are left out.
WITH batches AS (
    DELETE FROM sink_batches WHERE (sink_name, query_id) IN (
        SELECT sink_name, query_id FROM sink_batches
        WHERE changed_at < clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision)
        LIMIT %(cap)s FOR UPDATE SKIP LOCKED)
    RETURNING 1
), gone AS (
    DELETE FROM sinks WHERE sink_name IN (
        SELECT sink_name FROM sinks
        WHERE changed_at < clock_timestamp() - make_interval(secs => %(unused_for_s)s::double precision)
        LIMIT %(cap)s FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT (SELECT count(*) FROM batches) + (SELECT count(*) FROM gone) AS forgotten
