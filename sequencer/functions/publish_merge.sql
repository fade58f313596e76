-- publish_merge replaces runs by the runs of a merged object, or of a part of it.
--
-- It first locks, in the one order: the output's row, then the partitions by primary key. The statements
-- after that take their snapshots later (VOLATILE, READ COMMITTED). So they see everything as the last
-- holder of those locks left it.
--
-- A swap replaces consecutive runs of one partition by runs of the same offsets. It is done if exactly the
-- runs that the merge has read are still there. Otherwise nothing of it is done: a partition that changed
-- meanwhile (retention, DeleteRecords, deletion, another merge) keeps what it has. The output must not be
-- doomed, and the job's hold on it must not have lapsed [raced]. The call may be repeated. A partition's
-- size changes only where records were erased: a merge keeps each byte of a run that it replaces.
--
-- All numbers count from 1.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | job | | the merge; it holds the output |
-- | output, output_bytes, output_tier | | the merged object's segment |
-- | newest | | when the newest of its inputs was committed |
-- | may_be_merged_again | | whether the output becomes a candidate of the next tier |
-- | topic_ids, partition_numbers | partition | the distinct partitions in primary-key order |
-- | swap_parts | swap | number of its partition |
-- | input_swaps | run that is replaced | number of its swap |
-- | input_base_offsets, input_segments, input_positions | run that is replaced | what names it |
-- | run_swaps | run that is made | number of its swap |
-- | run_base_offsets, run_last_offsets, run_positions, run_lengths | run that is made | its columns |
-- | run_min_timestamps, run_max_timestamps | run that is made | its columns |
--
-- Returns `state`: `published`, or why nothing was done: `missing`, `doomed`, `lapsed`. And `swaps`: the
-- numbers of the swaps that are done, now or by an earlier call.
CREATE FUNCTION publish_merge(
    job uuid, output uuid, output_bytes bigint, output_tier smallint, newest timestamptz,
        may_be_merged_again boolean,
    topic_ids uuid[], partition_numbers integer[], swap_parts integer[],
    input_swaps integer[], input_base_offsets bigint[], input_segments uuid[], input_positions bigint[],
    run_swaps integer[], run_base_offsets bigint[], run_last_offsets bigint[], run_positions bigint[],
    run_lengths bigint[],
    run_min_timestamps bigint[], run_max_timestamps bigint[])
RETURNS TABLE (state text, swaps integer[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by primary key: it must not be chosen while the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
    found_state text;
    is_whole boolean[];
    running_max bigint[];
    sizes bigint[];
BEGIN
    SELECT s.state INTO found_state FROM segments AS s WHERE s.segment_id = output FOR NO KEY UPDATE;
    IF found_state IS NULL OR found_state = 'doomed' THEN
        RETURN QUERY SELECT coalesce(found_state, 'missing'), '{}'::integer[];
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM holds AS h WHERE h.segment_id = output AND h.job_id = job
        AND h.lease_until > clock_timestamp()) THEN
        RETURN QUERY SELECT 'lapsed', '{}'::integer[];
        RETURN;
    END IF;
    PERFORM 1
    FROM unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
        JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p;

    SELECT array_agg(swap.is_whole ORDER BY swap.swap),
        array_agg(swap.running_max ORDER BY swap.swap), array_agg(swap.size_bytes ORDER BY swap.swap)
    INTO is_whole, running_max, sizes
    FROM (
        SELECT given.swap, bool_and(stored.base_offset IS NOT NULL) AS is_whole,
            max(stored.running_max_timestamp_ms) AS running_max, sum(stored.length) AS size_bytes
        FROM unnest(input_swaps, input_base_offsets, input_segments, input_positions)
             AS given (swap, base_offset, segment_id, position)
        LEFT JOIN LATERAL (
            SELECT r.base_offset, r.running_max_timestamp_ms, r.length FROM partitions AS p
                JOIN runs AS r USING (topic_id, partition)
            WHERE p.topic_id = topic_ids[swap_parts[given.swap]]
                AND p.partition = partition_numbers[swap_parts[given.swap]]
                AND p.state = 'live' AND r.base_offset = given.base_offset
                AND r.segment_id = given.segment_id
                    AND r.position = given.position OFFSET 0) AS stored ON true
        GROUP BY given.swap) AS swap;

    DELETE FROM runs AS r USING unnest(input_swaps, input_base_offsets) AS given (swap, base_offset)
    WHERE r.topic_id = topic_ids[swap_parts[given.swap]]
        AND r.partition = partition_numbers[swap_parts[given.swap]]
        AND r.base_offset = given.base_offset AND is_whole[given.swap];

    INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                      min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
    SELECT topic_ids[swap_parts[made.swap]], partition_numbers[swap_parts[made.swap]], made.base_offset,
           made.last_offset, output,
           made.position, made.length, made.min_timestamp_ms, made.max_timestamp_ms, running_max[made.swap]
    FROM unnest(run_swaps, run_base_offsets, run_last_offsets, run_positions, run_lengths,
         run_min_timestamps, run_max_timestamps)
         AS made (swap, base_offset, last_offset, position, length, min_timestamp_ms, max_timestamp_ms)
    WHERE is_whole[made.swap];

    UPDATE partitions AS p SET size_bytes = p.size_bytes + other.more
    FROM (
        SELECT swap_parts[swap.swap] AS part, sum(swap.size_bytes - sizes[swap.swap]) AS more
        FROM (SELECT made.swap, sum(made.length) AS size_bytes
            FROM unnest(run_swaps, run_lengths) AS made (swap, length) GROUP BY made.swap) AS swap
        WHERE is_whole[swap.swap]
        GROUP BY swap_parts[swap.swap]
    ) AS other
    WHERE p.topic_id = topic_ids[other.part] AND p.partition = partition_numbers[other.part]
        AND other.more <> 0;

    IF true = ANY (is_whole) AND found_state = 'reserved' THEN
        -- Its commit is that of the newest input: retention by time does not start again.
        UPDATE segments AS s SET state = 'committed', size_bytes = output_bytes, committed_at = newest,
            tier = output_tier
        WHERE s.segment_id = output;
        IF may_be_merged_again THEN
            INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes, claimed_by)
            VALUES (output, output_tier, newest, output_bytes, job);
        END IF;
    END IF;

    RETURN QUERY
    SELECT 'published', coalesce(array_agg(DISTINCT made.swap ORDER BY made.swap), '{}')
    FROM unnest(run_swaps, run_base_offsets, run_positions) AS made (swap, base_offset, position)
    CROSS JOIN LATERAL (
        SELECT 1 FROM runs AS r
        WHERE r.topic_id = topic_ids[swap_parts[made.swap]]
            AND r.partition = partition_numbers[swap_parts[made.swap]]
            AND r.base_offset = made.base_offset AND r.segment_id = output
                AND r.position = made.position OFFSET 0) AS stored;
END
$function$;
