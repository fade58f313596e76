-- Answers administrators' questions about partitions: their sizes, and their producers.

-- name: sizes
SELECT topic_id, partition, size_bytes FROM partitions
WHERE topic_id = ANY(%(topic_ids)s::uuid[]) AND state = 'live'

-- name: active_producers
-- Of each partition those with the oldest open transactions and the youngest ids, :cap of either. A partition
-- without producers has a row of nulls. A missing partition has no row.
SELECT p.topic_id, p.partition, s.producer_id, s.producer_epoch,
       (s.sequences[cardinality(s.sequences)] & 2147483647)::integer AS last_sequence,
       s.max_timestamps[cardinality(s.max_timestamps)] AS last_timestamp_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS asked (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT topic_id, partition FROM partitions
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND state = 'live' OFFSET 0) AS p
LEFT JOIN LATERAL (
    SELECT state.* FROM (
        (SELECT producer_id FROM transaction_partitions
        WHERE topic_id = asked.topic_id AND partition = asked.partition AND first_offset IS NOT NULL
        ORDER BY first_offset LIMIT %(cap)s::integer)
        UNION
        (SELECT producer_id FROM producer_state
        WHERE topic_id = asked.topic_id AND partition = asked.partition
        ORDER BY producer_id DESC LIMIT %(cap)s::integer)) AS known
    JOIN producer_state AS state ON state.topic_id = asked.topic_id AND state.partition = asked.partition
        AND state.producer_id = known.producer_id) AS s ON true
ORDER BY p.topic_id, p.partition, s.producer_id
