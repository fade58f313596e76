-- Laterals make every look-up an index scan of the requested partition, whatever the size of the tables.
-- `doubt` says if what is read may be on no standby (schema.sql, doubts). `aborted` comes with the first run
-- of a partition: at least the aborted transactions that overlap its runs (docs/design/transactions.md). If
-- there are :max_aborted, some may be missing.

-- name: read
-- The run that covers the requested offset has the greatest base offset at or below it.
SELECT p.topic_id, p.partition, p.log_start_offset, p.high_watermark,
    greatest(p.log_start_offset, coalesce(p.first_unstable_offset, p.high_watermark)) AS last_stable_offset,
    p.coordinate_epoch, p.local_start_offset,
       r.base_offset, r.last_offset, r.position, r.length, r.min_timestamp_ms, r.max_timestamp_ms,
       r.object_key, r.object_size_bytes,
       CASE WHEN r.place = 1 THEN (
           SELECT array_agg(ARRAY[near.last_offset, near.first_offset, near.producer_id]
               ORDER BY near.last_offset)
           FROM (
               SELECT a.* FROM aborted_transactions AS a
               WHERE a.topic_id = p.topic_id AND a.partition = p.partition AND a.last_offset >= r.base_offset
                 AND a.last_offset <= coalesce((
                     SELECT last_offset FROM (
                         SELECT last_offset, stable_offset FROM aborted_transactions
                         WHERE topic_id = p.topic_id AND partition = p.partition
                             AND last_offset >= r.base_offset
                         ORDER BY last_offset LIMIT %(max_aborted)s::integer) AS first
                     WHERE stable_offset > r.read_to ORDER BY last_offset LIMIT 1), 9223372036854775807)
               ORDER BY a.last_offset LIMIT %(max_aborted)s::integer) AS near) END AS aborted,
       (SELECT number FROM doubts WHERE only_row) AS doubt
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(from_offsets)s::bigint[],
    %(max_runs)s::integer[])
     WITH ORDINALITY AS asked (topic_id, partition, from_offset, max_runs, place)
CROSS JOIN LATERAL (
    SELECT * FROM partitions
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND state = 'live' OFFSET 0) AS p
CROSS JOIN LATERAL (SELECT greatest(asked.from_offset, p.log_start_offset) AS from_offset) AS start
LEFT JOIN LATERAL (
    SELECT run.*, row_number() OVER (ORDER BY run.base_offset) AS place,
        max(run.last_offset) OVER () AS read_to
    FROM (SELECT runs.*, segments.object_key, segments.size_bytes AS object_size_bytes
    FROM runs CROSS JOIN LATERAL (SELECT object_key, size_bytes FROM segments
        WHERE segment_id = runs.segment_id OFFSET 0) AS segments
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND last_offset >= start.from_offset
      AND base_offset >= coalesce((
          SELECT base_offset FROM runs AS first
          WHERE topic_id = asked.topic_id AND partition = asked.partition AND base_offset <= start.from_offset
          ORDER BY base_offset DESC LIMIT 1), 0)
    ORDER BY base_offset LIMIT asked.max_runs) AS run) AS r ON true
ORDER BY asked.place, r.base_offset

-- name: poll
-- By partition, never by a global cursor: a transaction that commits late is behind any cursor [raced]. A
-- known end is the end of a run, because runs are replaced as a whole. After a merge it may be inside a run:
-- then that run comes first.
SELECT asked.topic_id, asked.partition, p.log_start_offset, p.high_watermark,
    greatest(p.log_start_offset, coalesce(p.first_unstable_offset, p.high_watermark)) AS last_stable_offset,
    p.coordinate_epoch, p.local_start_offset,
       r.base_offset, r.last_offset, r.position, r.length, r.min_timestamp_ms, r.max_timestamp_ms,
       r.object_key, r.object_size_bytes,
       CASE WHEN r.place = 1 THEN (
           SELECT array_agg(ARRAY[near.last_offset, near.first_offset, near.producer_id]
               ORDER BY near.last_offset)
           FROM (
               SELECT a.* FROM aborted_transactions AS a
               WHERE a.topic_id = p.topic_id AND a.partition = p.partition AND a.last_offset >= r.base_offset
                 AND a.last_offset <= coalesce((
                     SELECT last_offset FROM (
                         SELECT last_offset, stable_offset FROM aborted_transactions
                         WHERE topic_id = p.topic_id AND partition = p.partition
                             AND last_offset >= r.base_offset
                         ORDER BY last_offset LIMIT %(max_aborted)s::integer) AS first
                     WHERE stable_offset > r.read_to ORDER BY last_offset LIMIT 1), 9223372036854775807)
               ORDER BY a.last_offset LIMIT %(max_aborted)s::integer) AS near) END AS aborted,
       (SELECT number FROM doubts WHERE only_row) AS doubt
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(known_ends)s::bigint[],
    %(log_starts)s::bigint[], %(epochs)s::bigint[])
     WITH ORDINALITY AS asked (topic_id, partition, known_end, log_start, epoch, place)
LEFT JOIN LATERAL (
    SELECT * FROM partitions
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND state = 'live' OFFSET 0) AS p ON true
LEFT JOIN LATERAL (
    SELECT run.*, row_number() OVER (ORDER BY run.base_offset) AS place,
        max(run.last_offset) OVER () AS read_to
    FROM (SELECT runs.*, segments.object_key, segments.size_bytes AS object_size_bytes
    FROM runs CROSS JOIN LATERAL (SELECT object_key, size_bytes FROM segments
        WHERE segment_id = runs.segment_id OFFSET 0) AS segments
    WHERE topic_id = asked.topic_id AND partition = asked.partition
        AND last_offset >= greatest(asked.known_end, p.log_start_offset)
      AND base_offset >= coalesce((
          SELECT base_offset FROM runs AS first
          WHERE topic_id = asked.topic_id AND partition = asked.partition
            AND base_offset <= greatest(asked.known_end, p.log_start_offset)
          ORDER BY base_offset DESC LIMIT 1), 0)
    ORDER BY base_offset LIMIT %(max_runs)s::integer) AS run) AS r ON p.high_watermark > asked.known_end
WHERE p.topic_id IS NULL OR p.high_watermark <> asked.known_end OR p.log_start_offset <> asked.log_start
   OR p.coordinate_epoch <> asked.epoch
ORDER BY asked.place, r.base_offset

-- name: aborted_of_batches
-- Two sorts of rows. One per batch of an aborted transaction: the first of its producer that ends behind the
-- batch is the only one that may hold it, as the transactions of a producer follow each other. And one of
-- nulls per run that is no longer what was read: then transactions may be forgotten whose records were read.
-- Both are from one moment.
SELECT b.place, a.last_offset, a.first_offset, a.producer_id
FROM unnest(%(places)s::integer[], %(topic_ids)s::uuid[], %(partitions)s::integer[],
    %(base_offsets)s::bigint[], %(producer_ids)s::bigint[])
    AS b (place, topic_id, partition, base_offset, producer_id)
CROSS JOIN LATERAL (
    SELECT * FROM aborted_transactions
    WHERE topic_id = b.topic_id AND partition = b.partition AND producer_id = b.producer_id
      AND last_offset > b.base_offset
    ORDER BY last_offset LIMIT 1) AS a
WHERE a.first_offset <= b.base_offset
UNION
SELECT r.place, NULL, NULL, NULL
FROM unnest(%(run_places)s::integer[], %(run_topic_ids)s::uuid[], %(run_partitions)s::integer[],
    %(run_base_offsets)s::bigint[], %(run_positions)s::bigint[], %(run_object_keys)s::text[],
    %(read_from)s::bigint[])
    AS r (place, topic_id, partition, base_offset, position, object_key, read_from)
WHERE NOT EXISTS (
    SELECT FROM partitions AS p
    CROSS JOIN LATERAL (
        SELECT segment_id, position FROM runs
        WHERE topic_id = r.topic_id AND partition = r.partition AND base_offset = r.base_offset
        OFFSET 0) AS found
    CROSS JOIN LATERAL (
        SELECT object_key FROM segments WHERE segment_id = found.segment_id OFFSET 0) AS s
    WHERE p.topic_id = r.topic_id AND p.partition = r.partition AND p.state = 'live'
      AND p.log_start_offset <= r.read_from AND found.position = r.position AND s.object_key = r.object_key)

-- name: aborted_of_run
-- Looks at the next :cap aborted transactions whose markers lie at an offset or behind it, and returns those
-- that begin before the run ends. And if the run is there, with the log start that was read: then none of its
-- transactions are forgotten. All is from one moment.
SELECT array_agg(ARRAY[a.last_offset, a.first_offset, a.producer_id] ORDER BY a.last_offset)
        FILTER (WHERE a.first_offset <= %(last_offset)s) AS aborted,
    count(*) AS looked_at, max(a.last_offset) AS looked_to, max(a.stable_offset) AS stable_offset,
    EXISTS (
        SELECT FROM runs JOIN segments USING (segment_id) JOIN partitions AS p USING (topic_id, partition)
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset = %(base_offset)s
            AND position = %(position)s AND object_key = %(object_key)s
            AND p.state = 'live' AND p.log_start_offset <= %(log_start)s) AS is_there
FROM (
    SELECT * FROM aborted_transactions
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset >= %(from_offset)s
    ORDER BY last_offset LIMIT %(cap)s) AS a

-- name: bounds
SELECT p.topic_id, p.partition, p.log_start_offset, p.high_watermark,
    greatest(p.log_start_offset, coalesce(p.first_unstable_offset, p.high_watermark)) AS last_stable_offset,
    p.max_timestamp_ms, p.local_start_offset,
       (SELECT number FROM doubts WHERE only_row) AS doubt
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS asked (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT * FROM partitions
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND state = 'live' OFFSET 0) AS p

-- name: read_history
-- What lies below the local start, in two sorts of rows: files of the history, with their row groups, and the
-- few runs that are there because they did not decode. Both begin with the last that begins at or before the
-- requested offset.
SELECT asked.place, f.object_key, f.size_bytes AS object_size_bytes, f.first_offset AS base_offset,
    f.last_offset, f.row_groups, NULL::bigint AS position, NULL::bigint AS length,
    -1::bigint AS min_timestamp_ms, -1::bigint AS max_timestamp_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(from_offsets)s::bigint[],
    %(ends)s::bigint[])
    WITH ORDINALITY AS asked (topic_id, partition, from_offset, end_offset, place)
CROSS JOIN LATERAL (
    SELECT * FROM history_files
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND first_offset < asked.end_offset
      AND first_offset >= coalesce((
          SELECT first_offset FROM history_files AS first
          WHERE topic_id = asked.topic_id AND partition = asked.partition
            AND first_offset <= asked.from_offset
          ORDER BY first_offset DESC LIMIT 1), 0)
    ORDER BY first_offset LIMIT %(cap)s) AS f
UNION ALL
SELECT asked.place, s.object_key, s.size_bytes, r.base_offset, r.last_offset, NULL, r.position, r.length,
    r.min_timestamp_ms, r.max_timestamp_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(from_offsets)s::bigint[],
    %(ends)s::bigint[])
    WITH ORDINALITY AS asked (topic_id, partition, from_offset, end_offset, place)
CROSS JOIN LATERAL (
    SELECT * FROM runs
    WHERE topic_id = asked.topic_id AND partition = asked.partition AND base_offset < asked.end_offset
      AND base_offset >= coalesce((
          SELECT base_offset FROM runs AS first
          WHERE topic_id = asked.topic_id AND partition = asked.partition
            AND base_offset <= asked.from_offset
          ORDER BY base_offset DESC LIMIT 1), 0)
    ORDER BY base_offset LIMIT %(cap)s) AS r
JOIN segments AS s USING (segment_id)
ORDER BY place, base_offset

-- name: history_file_for_timestamp
-- The first file below the local start that ends at or after an offset and has a record of this time or a
-- later one. A partition has few files: they are large. Times are whole milliseconds, and to_timestamp rounds
-- those of the year 9999 by some microseconds: half a millisecond less compares right.
SELECT first_offset FROM history_files
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND last_offset >= %(from_offset)s
    AND first_offset < %(end_offset)s
    AND (newest > to_timestamp((%(timestamp_ms)s::bigint - 0.5) / 1000.0)
        OR has_untimed AND %(timestamp_ms)s::bigint < 0)
ORDER BY first_offset LIMIT 1

-- name: candidate_run_for_timestamp
-- The running maximum grows with the offset, so the first run that reaches the time is found by halving the
-- offsets that may hold it: at most 63 look-ups by primary key. An index for this would cost every commit
-- more. Earlier runs cannot hold the time. From there on a run's own maximum decides, because the run that
-- raised the running maximum may be gone. At most :step runs are examined. looked_until is where the next
-- step continues, null at the end of the log.
WITH RECURSIVE halves AS (
    -- In [low, high), low is the first offset that may be in that run. An offset whose run is gone comes
    -- before all others.
    SELECT log_start_offset, 0::bigint AS low, high_watermark AS high FROM partitions
    WHERE topic_id = %(topic_id)s::uuid AND partition = %(partition)s::integer AND state = 'live'
        AND max_timestamp_ms >= %(timestamp_ms)s::bigint
    UNION ALL
    SELECT halves.log_start_offset,
           CASE WHEN middle.reaches THEN halves.low
               ELSE greatest(middle.last_offset, (halves.low + halves.high) / 2) + 1 END,
           CASE WHEN middle.reaches THEN middle.base_offset ELSE halves.high END
    FROM halves LEFT JOIN LATERAL (
        SELECT base_offset, last_offset, running_max_timestamp_ms >= %(timestamp_ms)s::bigint AS reaches
        FROM runs
        WHERE topic_id = %(topic_id)s::uuid AND partition = %(partition)s::integer
            AND base_offset <= (halves.low + halves.high) / 2
        ORDER BY base_offset DESC LIMIT 1) AS middle ON true
    WHERE halves.low < halves.high
), start AS MATERIALIZED (
    SELECT r.base_offset, found.log_start_offset FROM (SELECT * FROM halves WHERE low >= high) AS found
    CROSS JOIN LATERAL (
        SELECT base_offset FROM runs
        WHERE topic_id = %(topic_id)s::uuid AND partition = %(partition)s::integer
            AND base_offset >= found.low
        ORDER BY base_offset LIMIT 1) AS r
), covering AS MATERIALIZED (
    SELECT greatest(start.base_offset, (
        SELECT base_offset FROM runs
        WHERE topic_id = %(topic_id)s::uuid AND partition = %(partition)s::integer
          AND base_offset <= greatest(%(from_offset)s::bigint, start.log_start_offset)
        ORDER BY base_offset DESC LIMIT 1)) AS base_offset,  -- greatest ignores a null
        greatest(%(from_offset)s::bigint, start.log_start_offset) AS from_offset
    FROM start
), looked AS MATERIALIZED (
    SELECT r.*, covering.from_offset FROM covering CROSS JOIN LATERAL (
        SELECT * FROM runs
        WHERE topic_id = %(topic_id)s::uuid AND partition = %(partition)s::integer
            AND base_offset >= covering.base_offset
          AND last_offset >= covering.from_offset
        ORDER BY base_offset LIMIT %(step)s::integer) AS r
)
SELECT r.topic_id, r.partition, r.base_offset, r.last_offset, r.position, r.length, r.min_timestamp_ms,
    r.max_timestamp_ms,
       segments.object_key, segments.size_bytes AS object_size_bytes,
       (SELECT max(last_offset) FROM looked) AS looked_until
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT * FROM looked WHERE max_timestamp_ms >= %(timestamp_ms)s::bigint AND last_offset >= from_offset
    ORDER BY base_offset LIMIT 1) AS r ON true
LEFT JOIN segments ON segments.segment_id = r.segment_id
