-- sequence_segments gives offsets to the batches of uploaded segments when nothing must be judged: every
-- segment is still reserved, every partition lives, every producer goes on where it left off, and every
-- transaction takes its batches. Nearly all
-- commits are so. The client has worked out everything relative to where each partition stands; this
-- function checks, adds and writes. Otherwise it calls commit_segments, under the same locks and in the
-- same transaction. Both decide the same commit alike (docs/design/commit.md).
--
-- It first locks, in the order of commit_segments: transactions, segments by id, then partitions by primary
-- key. It keeps the counters of the locked partitions' rows, which Postgres reads again after a wait. The
-- statements after it take their snapshots later, and so read everything else as it is under the locks
-- [raced].
--
-- A turn is all batches of a producer for a partition. All numbers count from 1. The first 18 parameters
-- are those of commit_segments.
--
-- | parameter | type | one entry per | meaning |
-- |---|---|---|---|
-- | part_records | bigint | partition | records that it gains |
-- | part_lengths | bigint | partition | bytes that it gains |
-- | part_max_timestamps | bigint | partition | the greatest timestamp |
-- | batch_starts | bigint | batch | records before it in its partition, in this commit |
-- | run_first_batches, run_last_batches | integer | run | its first and its last batch |
-- | run_min_timestamps, run_max_timestamps | bigint | run | its own |
-- | run_running_max_timestamps | bigint | run | the greatest of its partition in this commit so far |
-- | turn_heads | integer | turn | its first batch |
-- | turn_producers | bigint | turn | producer id |
-- | turn_epochs | integer | turn | producer epoch |
-- | turn_transactions | integer | turn | as chain_transactions; empty if all are 0 |
-- | turn_recent_from, turn_recent_to | integer | turn | its places in `recent_batches`, both included |
-- | recent_batches | integer | batch | of each turn the last ten at most, turn after turn |
--
-- No runs: the client knows that something must be judged.
--
-- Returns what commit_segments returns, and with each segment:
-- - `log_starts`: the log start offsets of the partitions in the order given; NULL if one of them does not
--   exist.
-- - `first_unstables`: their first unstable offsets after this commit, or -1; empty: no partition has one;
--   NULL: they are not those after this commit, because it is a repeat.
CREATE FUNCTION sequence_segments(
    segment_ids uuid[], segment_sizes bigint[],
    topic_ids uuid[], partition_numbers integer[],
    chain_parts integer[], chain_producers bigint[], chain_epochs integer[], chain_transactions integer[],
    batch_parts integer[], batch_segments integer[], batch_positions bigint[], batch_lengths integer[],
    batch_records integer[],
    batch_min_timestamps bigint[], batch_max_timestamps bigint[],
    batch_chains integer[], batch_members integer[], batch_sequences integer[],
    part_records bigint[], part_lengths bigint[], part_max_timestamps bigint[],
    batch_starts bigint[],
    run_first_batches integer[], run_last_batches integer[],
    run_min_timestamps bigint[], run_max_timestamps bigint[], run_running_max_timestamps bigint[],
    turn_heads integer[], turn_producers bigint[], turn_epochs integer[],
    turn_transactions integer[], turn_recent_from integer[], turn_recent_to integer[],
    recent_batches integer[])
RETURNS TABLE (state text, object_key text, outcome bigint[], log_starts bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by primary key: it must not be chosen again for each call, nor while
-- the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    part_rows tid[];
    watermarks bigint[];
    starts bigint[];
    newest_before bigint[];
    turn_rows tid[];
    in_turn boolean;
    is_first boolean;
    unstables bigint[];
    opening integer[];
    timeouts_ms integer[];
    changed_rows bigint;
BEGIN
    IF cardinality(chain_transactions) > 0 THEN
        PERFORM 1
        FROM (SELECT DISTINCT number AS producer_id FROM unnest(chain_producers) AS number
            ORDER BY number) AS given
        CROSS JOIN LATERAL (
            SELECT 1 FROM transactions AS t WHERE t.producer_id = given.producer_id FOR SHARE) AS own;
    END IF;
    SELECT count(*) FILTER (WHERE locked.state = 'reserved') = cardinality(segment_ids) INTO is_first
    FROM (SELECT s.state FROM segments AS s WHERE s.segment_id = ANY (segment_ids)
        ORDER BY s.segment_id FOR NO KEY UPDATE) AS locked;

    IF cardinality(topic_ids) > 1 THEN
        -- After a wait, every other row would have changed since the statement began, and Postgres would read
        -- each a second time.
        PERFORM 1 FROM partitions WHERE topic_id = topic_ids[1]
            AND partition = partition_numbers[1] FOR NO KEY UPDATE;
    END IF;
    SELECT array_agg(locked.row), array_agg(locked.high_watermark), array_agg(locked.max_timestamp_ms),
           CASE WHEN count(*) = cardinality(topic_ids) THEN array_agg(locked.log_start_offset) END,
           is_first AND cardinality(run_first_batches) > 0
           AND count(*) FILTER (WHERE locked.state = 'live') = cardinality(topic_ids),
           CASE WHEN cardinality(chain_transactions) > 0 OR count(locked.first_unstable_offset) > 0
                THEN array_agg(coalesce(locked.first_unstable_offset, -1)) ELSE '{}' END
    INTO part_rows, watermarks, newest_before, starts, in_turn, unstables
    FROM (
        SELECT p.* FROM generate_series(1, cardinality(topic_ids)) AS given (part) CROSS JOIN LATERAL (
            SELECT ctid AS row, high_watermark, log_start_offset, max_timestamp_ms,
                first_unstable_offset, state
            FROM partitions
            WHERE topic_id = topic_ids[given.part]
                AND partition = partition_numbers[given.part] FOR NO KEY UPDATE) AS p) AS locked;

    IF in_turn AND cardinality(turn_heads) > 0 THEN
        -- Without a state only sequence 0 begins one; with one, the next is what follows it in the same
        -- epoch.
        SELECT bool_and(CASE WHEN stored.row IS NULL THEN given.sequence = 0
                             ELSE given.sequence = stored.next_sequence
                                 AND given.producer_epoch = stored.producer_epoch END),
               array_agg(stored.row)
        INTO in_turn, turn_rows
        FROM (
            SELECT batch_parts[turn_heads[turn]] AS part, batch_sequences[turn_heads[turn]] AS sequence,
                   turn_producers[turn] AS producer_id, turn_epochs[turn] AS producer_epoch
            FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
        LEFT JOIN LATERAL (
            SELECT s.ctid AS row, s.producer_epoch,
                (s.sequences[cardinality(s.sequences)] + 1) & 2147483647 AS next_sequence
            FROM producer_state AS s
            WHERE s.topic_id = topic_ids[given.part] AND s.partition = partition_numbers[given.part]
              AND s.producer_id = given.producer_id OFFSET 0) AS stored ON true;
    END IF;
    IF in_turn AND cardinality(turn_transactions) > 0 THEN
        -- `opening`: the turns that are the first of their transactions in a partition.
        SELECT bool_and(coalesce(transaction.producer_epoch = turn_epochs[given.turn], false)
                AND (turn_transactions[given.turn] = 2 OR added.producer_id IS NOT NULL)),
            array_agg(given.turn) FILTER (WHERE added.first_offset IS NULL),
            array_agg(transaction.timeout_ms) FILTER (WHERE added.first_offset IS NULL)
        INTO in_turn, opening, timeouts_ms
        FROM (SELECT turn, batch_parts[turn_heads[turn]] AS part
            FROM generate_series(1, cardinality(turn_heads)) AS turn
            WHERE turn_transactions[turn] > 0 OFFSET 0) AS given
        LEFT JOIN LATERAL (
            SELECT t.producer_epoch, t.timeout_ms FROM transactions AS t
            WHERE t.producer_id = turn_producers[given.turn] OFFSET 0) AS transaction ON true
        LEFT JOIN LATERAL (
            SELECT t.producer_id, t.first_offset FROM transaction_partitions AS t
            WHERE t.producer_id = turn_producers[given.turn] AND t.topic_id = topic_ids[given.part]
                AND t.partition = partition_numbers[given.part] OFFSET 0) AS added ON true;
    END IF;
    IF NOT in_turn THEN
        RETURN QUERY SELECT judged.state, judged.object_key, judged.outcome, starts,
            CASE WHEN is_first THEN unstable_offsets(topic_ids, partition_numbers) END
        FROM commit_segments(
            segment_ids, segment_sizes, topic_ids, partition_numbers, chain_parts, chain_producers,
                chain_epochs, chain_transactions,
            batch_parts, batch_segments, batch_positions, batch_lengths, batch_records, batch_min_timestamps,
            batch_max_timestamps,
            batch_chains, batch_members, batch_sequences) AS judged;
        RETURN;
    END IF;

    UPDATE partitions AS p SET high_watermark = p.high_watermark + part_records[given.part],
           size_bytes = p.size_bytes + part_lengths[given.part],
           max_timestamp_ms = greatest(p.max_timestamp_ms, part_max_timestamps[given.part])
    FROM generate_series(1, cardinality(topic_ids)) AS given (part)
    WHERE p.ctid = part_rows[given.part];
    GET DIAGNOSTICS changed_rows = ROW_COUNT;
    ASSERT changed_rows = cardinality(topic_ids), 'a locked partition was not where it had been locked';

    INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                      min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
    SELECT topic_ids[given.part], partition_numbers[given.part],
           watermarks[given.part] + batch_starts[given.first],
           watermarks[given.part] + batch_starts[given.last] + batch_records[given.last] - 1,
           segment_ids[batch_segments[given.first]], batch_positions[given.first],
           batch_positions[given.last] + batch_lengths[given.last] - batch_positions[given.first],
           run_min_timestamps[given.run], run_max_timestamps[given.run],
           greatest(newest_before[given.part], run_running_max_timestamps[given.run])
    FROM (
        SELECT run, run_first_batches[run] AS first, run_last_batches[run] AS last,
            batch_parts[run_first_batches[run]] AS part
        FROM generate_series(1, cardinality(run_first_batches)) AS run OFFSET 0) AS given;

    IF cardinality(turn_heads) > 0 THEN
        -- The last ten accepted batches are remembered. Mostly a turn is one batch, which needs no look at a
        -- list.
        IF cardinality(recent_batches) = cardinality(turn_heads) THEN
            UPDATE producer_state AS s
            SET sequences = s.sequences[cardinality(s.sequences) - 8:]
                    || ARRAY[
                    given.sequence << 31 | ((given.sequence + batch_records[given.batch] - 1) & 2147483647)],
                base_offsets = s.base_offsets[cardinality(s.base_offsets) - 8:]
                    || ARRAY[watermarks[given.part] + batch_starts[given.batch]],
                max_timestamps = s.max_timestamps[cardinality(s.max_timestamps) - 8:]
                    || ARRAY[batch_max_timestamps[given.batch]],
                updated_at = clock_timestamp()
            FROM (
                SELECT turn_rows[turn] AS row, turn_heads[turn] AS batch,
                       batch_parts[turn_heads[turn]] AS part,
                       batch_sequences[turn_heads[turn]]::bigint AS sequence
                FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
            WHERE s.ctid = given.row;
        ELSE
            UPDATE producer_state AS s
            SET sequences = s.sequences[cardinality(s.sequences) + given.batches - 9:]
                    || ARRAY(
                    SELECT recent.sequence << 31 | ((recent.sequence + recent.records - 1) & 2147483647)
                    FROM (
                        SELECT batch_sequences[recent_batches[place]]::bigint AS sequence,
                            batch_records[recent_batches[place]] AS records
                        FROM generate_series(given.recent_from,
                            given.recent_to) AS place OFFSET 0) AS recent),
                base_offsets = s.base_offsets[cardinality(s.base_offsets) + given.batches - 9:]
                    || ARRAY(
                    SELECT watermarks[given.part] + batch_starts[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                max_timestamps = s.max_timestamps[cardinality(s.max_timestamps) + given.batches - 9:]
                    || ARRAY(
                    SELECT batch_max_timestamps[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                updated_at = clock_timestamp()
            FROM (
                SELECT turn_rows[turn] AS row, batch_parts[turn_heads[turn]] AS part,
                       turn_recent_from[turn] AS recent_from, turn_recent_to[turn] AS recent_to,
                       turn_recent_to[turn] - turn_recent_from[turn] + 1 AS batches
                FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
            WHERE s.ctid = given.row;
        END IF;
        GET DIAGNOSTICS changed_rows = ROW_COUNT;
        ASSERT changed_rows = cardinality(turn_heads) - cardinality(array_positions(turn_rows, NULL)),
            'a producer was written by another';

        IF changed_rows < cardinality(turn_heads) THEN
            INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences,
                base_offsets, max_timestamps)
            SELECT topic_ids[given.part], partition_numbers[given.part], given.producer_id,
                    given.producer_epoch, ARRAY(
                    SELECT recent.sequence << 31 | ((recent.sequence + recent.records - 1) & 2147483647)
                    FROM (
                        SELECT batch_sequences[recent_batches[place]]::bigint AS sequence,
                            batch_records[recent_batches[place]] AS records
                        FROM generate_series(given.recent_from,
                            given.recent_to) AS place OFFSET 0) AS recent),
                ARRAY(
                    SELECT watermarks[given.part] + batch_starts[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                ARRAY(
                    SELECT batch_max_timestamps[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place)
            FROM (
                SELECT batch_parts[turn_heads[turn]] AS part, turn_producers[turn] AS producer_id,
                       turn_epochs[turn] AS producer_epoch,
                       turn_recent_from[turn] AS recent_from, turn_recent_to[turn] AS recent_to
                FROM generate_series(1, cardinality(turn_heads)) AS turn
                WHERE turn_rows[turn] IS NULL OFFSET 0) AS given;
        END IF;
    END IF;

    IF cardinality(opening) > 0 THEN
        INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
        SELECT turn_producers[given.turn], topic_ids[given.part], partition_numbers[given.part],
               watermarks[given.part] + batch_starts[given.batch],
               clock_timestamp() + make_interval(secs => given.timeout_ms / 1000.0)
        FROM (SELECT turn, timeout_ms, turn_heads[turn] AS batch, batch_parts[turn_heads[turn]] AS part
            FROM unnest(opening, timeouts_ms) AS opened (turn, timeout_ms) OFFSET 0) AS given
        ORDER BY turn_producers[given.turn], topic_ids[given.part], partition_numbers[given.part]
        ON CONFLICT (producer_id, topic_id, partition) DO UPDATE SET first_offset = excluded.first_offset;

        UPDATE partitions AS p SET first_unstable_offset = given.first_offset
        FROM (SELECT batch_parts[turn_heads[turn]] AS part,
                min(watermarks[batch_parts[turn_heads[turn]]] + batch_starts[turn_heads[turn]])
                    AS first_offset
            FROM unnest(opening) AS turn GROUP BY batch_parts[turn_heads[turn]] OFFSET 0) AS given
        WHERE p.topic_id = topic_ids[given.part] AND p.partition = partition_numbers[given.part]
            AND p.first_unstable_offset IS NULL;
        unstables := unstable_offsets(topic_ids, partition_numbers);
    END IF;

    IF cardinality(segment_ids) = 1 THEN
        RETURN QUERY
        UPDATE segments AS s SET state = 'committed', size_bytes = segment_sizes[1],
            committed_at = clock_timestamp(), outcome = ARRAY(
            SELECT 8 * (watermarks[batch_parts[batch]] + batch_starts[batch])
                FROM generate_series(1, cardinality(batch_parts)) AS batch)
        WHERE s.segment_id = segment_ids[1]
        RETURNING s.state, s.object_key, s.outcome, starts, unstables;
        RETURN;
    END IF;
    RETURN QUERY
    WITH decided AS MATERIALIZED (
        SELECT batch_segments[batch] AS segment,
            array_agg(8 * (watermarks[batch_parts[batch]] + batch_starts[batch]) ORDER BY batch) AS outcome
        FROM generate_series(1, cardinality(batch_parts)) AS batch GROUP BY batch_segments[batch]
    ), committed AS (
        UPDATE segments AS s SET state = 'committed', size_bytes = segment_sizes[decided.segment],
               committed_at = clock_timestamp(),
               outcome = decided.outcome
        FROM decided WHERE s.segment_id = segment_ids[decided.segment]
        RETURNING decided.segment, s.object_key, s.outcome
    )
    SELECT 'committed', committed.object_key, committed.outcome, starts, unstables FROM committed
        ORDER BY committed.segment;
END
$function$;
