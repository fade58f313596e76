-- Log compaction: which partitions of compacted topics are due, who cleans one, and how far it is clean.

-- name: page
-- The next live partitions of compacted topics, in primary-key order. The age of the oldest record that was
-- never cleaned is looked up only where the topic limits it.
--
-- `cleanable_to` is the last stable offset, or the end of the topic's table, for which the rest waits.
SELECT p.*, c.clean_to, c.clean_bytes, c.mark_offsets, c.marks_ms, c.oldest_tombstone,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, dirty.oldest_ms
FROM (
    SELECT t.topic_id, p.partition, t.config, p.log_start_offset, p.local_start_offset, p.high_watermark,
        greatest(p.log_start_offset, least(
            coalesce(p.first_unstable_offset, p.high_watermark),
            CASE WHEN p.local_start_offset <= p.log_start_offset THEN b.end_offset END)) AS cleanable_to,
        p.size_bytes
    FROM (
        SELECT topic_id, config FROM topics
        WHERE strpos(config ->> 'cleanup.policy', 'compact') > 0 AND deleted_at IS NULL
            AND topic_id >= %(after_topic_id)s::uuid
        ORDER BY topic_id LIMIT %(cap)s + 1
    ) AS t
    CROSS JOIN LATERAL (
        SELECT p.* FROM partitions AS p
        WHERE p.topic_id = t.topic_id AND p.state = 'live'
            AND (p.topic_id, p.partition) > (%(after_topic_id)s::uuid, %(after_partition)s::integer)
        ORDER BY p.partition LIMIT %(cap)s
    ) AS p
    LEFT JOIN LATERAL (
        SELECT coalesce(h.compacted_to, 0) AS end_offset
        FROM history_tables AS b
        LEFT JOIN history_partitions AS h ON h.topic_id = b.topic_id AND h.partition = p.partition
        WHERE t.config ->> 'tidelog.history' IS DISTINCT FROM 'off' AND b.topic_id = p.topic_id
            AND b.published_at IS NOT NULL OFFSET 0
    ) AS b ON true
    ORDER BY t.topic_id, p.partition LIMIT %(cap)s
) AS p
LEFT JOIN LATERAL (
    SELECT * FROM cleanings AS c WHERE c.topic_id = p.topic_id AND c.partition = p.partition OFFSET 0
) AS c ON true
LEFT JOIN LATERAL (
    SELECT CASE WHEN r.min_timestamp_ms >= 0 THEN r.min_timestamp_ms
        ELSE (extract(epoch FROM s.committed_at) * 1000)::bigint END AS oldest_ms
    FROM runs AS r JOIN segments AS s USING (segment_id)
    WHERE p.config ? 'max.compaction.lag.ms' AND r.topic_id = p.topic_id AND r.partition = p.partition
        AND r.last_offset >= coalesce(c.clean_to, 0)
        AND r.base_offset >= coalesce((
            SELECT first.base_offset FROM runs AS first
            WHERE first.topic_id = p.topic_id AND first.partition = p.partition
                AND first.base_offset <= coalesce(c.clean_to, 0)
            ORDER BY first.base_offset DESC LIMIT 1), 0)
    ORDER BY r.base_offset LIMIT 1
) AS dirty ON true
ORDER BY p.topic_id, p.partition

-- name: mark_due
INSERT INTO cleanings AS c (topic_id, partition, due_at)
SELECT d.topic_id, d.partition, clock_timestamp()
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS d (topic_id, partition)
ORDER BY d.topic_id, d.partition
ON CONFLICT (topic_id, partition) DO UPDATE SET due_at = clock_timestamp() WHERE c.due_at IS NULL

-- name: claim
-- The partition that is due for longest, if nobody cleans it. It goes behind the others: one whose cleaners
-- die must not keep the others waiting.
UPDATE cleanings AS c SET claimed_by = %(job_id)s::uuid, due_at = clock_timestamp(),
    lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
FROM (
    SELECT topic_id, partition FROM cleanings
    WHERE due_at IS NOT NULL AND (lease_until IS NULL OR lease_until < clock_timestamp())
    ORDER BY due_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
) AS next
WHERE c.topic_id = next.topic_id AND c.partition = next.partition
RETURNING c.topic_id, c.partition

-- name: state
SELECT t.topic_id, p.partition, t.config, p.log_start_offset, p.local_start_offset, p.high_watermark,
    greatest(p.log_start_offset, least(
        coalesce(p.first_unstable_offset, p.high_watermark),
        CASE WHEN b.published_at IS NOT NULL AND t.config ->> 'tidelog.history' IS DISTINCT FROM 'off'
            AND p.local_start_offset <= p.log_start_offset
            THEN coalesce(h.compacted_to, 0) END)) AS cleanable_to,
    p.size_bytes, c.clean_to, c.clean_bytes, c.mark_offsets, c.marks_ms, c.oldest_tombstone,
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms, NULL::bigint AS oldest_ms
FROM topics AS t JOIN partitions AS p USING (topic_id) JOIN cleanings AS c USING (topic_id, partition)
LEFT JOIN history_tables AS b USING (topic_id)
LEFT JOIN history_partitions AS h USING (topic_id, partition)
WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND p.state = 'live'
    AND t.deleted_at IS NULL AND strpos(t.config ->> 'cleanup.policy', 'compact') > 0

-- name: runs
-- From the run that holds an offset on. `is_in_journal`: what the journal's last snapshot shows is in the
-- bucket (journal.sql, new_segments). A row that was marked since counts as new until the next entry. Ages
-- are right for two thousand million transactions, so older rows are judged by their time. A journal that has
-- not begun sets no bound.
SELECT r.base_offset, r.last_offset, r.segment_id, r.position, r.length, r.min_timestamp_ms,
    r.max_timestamp_ms, s.object_key, s.committed_at,
    j.snapshot IS NULL OR s.committed_at < j.taken_at - interval '1 day'
        OR pg_visible_in_snapshot((j.next_xid - age(s.xmin))::text::xid8, j.snapshot) AS is_in_journal
FROM runs AS r JOIN segments AS s USING (segment_id)
CROSS JOIN (
    SELECT snapshot, taken_at, pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        + age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS next_xid
    FROM journal) AS j
WHERE r.topic_id = %(topic_id)s AND r.partition = %(partition)s AND r.base_offset < %(end_offset)s
    AND r.base_offset >= coalesce((
        SELECT first.base_offset FROM runs AS first
        WHERE first.topic_id = %(topic_id)s AND first.partition = %(partition)s
            AND first.base_offset <= %(from_offset)s
        ORDER BY first.base_offset DESC LIMIT 1), 0)
ORDER BY r.base_offset LIMIT %(cap)s

-- name: aborted
-- One row.
SELECT array_agg(last_offset) AS last_offsets, array_agg(first_offset) AS first_offsets,
    array_agg(producer_id) AS producer_ids, max(stable_offset) AS stable_offset
FROM (
    SELECT * FROM aborted_transactions
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset >= %(from_offset)s
    ORDER BY last_offset LIMIT %(cap)s
) AS a

-- name: forget_aborted
WITH found AS MATERIALIZED (
    SELECT last_offset FROM aborted_transactions
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset < %(below)s
    ORDER BY last_offset LIMIT %(cap)s
), gone AS (
    DELETE FROM aborted_transactions
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
        AND last_offset <= (SELECT max(last_offset) FROM found)
)
SELECT count(*) = %(cap)s AS may_be_more FROM found

-- name: renew
UPDATE cleanings SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND claimed_by = %(job_id)s
RETURNING 1 AS one

-- name: note_tombstones
-- Before any goes: a table that has not seen them begins again (history_goes_on_at).
UPDATE cleanings SET tombstones_gone_to = greatest(tombstones_gone_to, %(tombstones_to)s)
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND claimed_by = %(job_id)s
RETURNING 1 AS one

-- name: finish
UPDATE cleanings SET clean_to = %(clean_to)s, clean_bytes = %(clean_bytes)s,
    mark_offsets = %(mark_offsets)s::bigint[], marks_ms = %(marks_ms)s::bigint[],
    oldest_tombstone = %(oldest_tombstone)s, due_at = NULL, claimed_by = NULL, lease_until = NULL
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND claimed_by = %(job_id)s
RETURNING 1 AS one

-- name: let_go
UPDATE cleanings SET due_at = CASE WHEN %(is_still_due)s THEN clock_timestamp() END, claimed_by = NULL,
    lease_until = NULL
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND claimed_by = %(job_id)s
