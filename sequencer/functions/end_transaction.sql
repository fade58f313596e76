-- end_transaction commits or aborts an open transaction: the markers in its partitions, its pending offsets,
-- and its own row, in one transaction (docs/design/transactions.md).
--
-- Each statement that decides comes after the locks that it needs: first the transaction's row, then the
-- groups with pending offsets, then the partitions with records. Commits that add to the transaction hold its
-- row FOR SHARE, so there are none meanwhile, and later ones find it ended.
--
-- | parameter | meaning |
-- |---|---|
-- | id | the transactional id |
-- | of_producer, of_epoch | which producer ends it, or whose transaction is to be ended |
-- | is_commit | or else it aborts |
-- | cause | who ends it: `client`, or `client2` of transaction.version 2 (KIP-890), or `fence`, `restart` or
--   `timeout` (only if its time is over) |
-- | marker_segment, marker_key, marker_bytes | of the object that is the marker |
--
-- The epoch rises with each end, but not for `client`. After a `fence` the producer cannot go on.
--
-- Returns one row:
-- | column | meaning |
-- |---|---|
-- | verdict | 0 done, now or before; 1 fenced; 2 no such producer of this id; 3 nothing to end |
-- | producer_id, producer_epoch | which the producer has from now on |
-- | topic_ids, partition_numbers | where markers were written now |
-- | marker_offsets, first_offsets | of each: the marker's offset, and the first of its records |
-- | first_unstables | of each: the partition's first unstable offset from now on, or -1 |
CREATE FUNCTION end_transaction(
    id text, of_producer bigint, of_epoch integer, is_commit boolean, cause text,
    marker_segment uuid, marker_key text, marker_bytes integer)
RETURNS TABLE (verdict integer, producer_id bigint, producer_epoch integer, topic_ids uuid[],
    partition_numbers integer[], marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by key: it must not be chosen while the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_producer bigint;
    own_epoch integer;
    last_producer bigint;
    last_epoch integer;
    last_end text;
    is_open boolean;
    new_end text := CASE WHEN is_commit THEN 'commit' ELSE 'abort' END;
    next_producer bigint;
    next_epoch integer;
    found_topics uuid[];
    found_numbers integer[];
    firsts bigint[];
    markers bigint[];
    newest bigint[];
    unstables_before bigint[];
    unstables bigint[];
BEGIN
    SELECT t.producer_id, t.producer_epoch, t.last_producer_id, t.last_producer_epoch, t.ended
    INTO own_producer, own_epoch, last_producer, last_epoch, last_end
    FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    -- A client that keeps its epoch may have begun its next transaction since this one was seen to be late
    -- [raced]. That one has time.
    SELECT EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = own_producer
            AND (cause <> 'timeout' OR p.expires_at < clock_timestamp()))
        OR EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = own_producer
            AND (cause <> 'timeout' OR g.expires_at < clock_timestamp()))
    INTO is_open;

    IF own_producer = of_producer AND own_epoch = of_epoch THEN
        IF NOT is_open AND (is_commit OR cause <> 'client2') THEN
            RETURN QUERY SELECT CASE WHEN cause = 'client' AND last_end = new_end THEN 0 ELSE 3 END,
                own_producer, own_epoch, '{}'::uuid[], '{}'::integer[], '{}'::bigint[], '{}'::bigint[],
                '{}'::bigint[];
            RETURN;
        END IF;
    ELSE
        RETURN QUERY SELECT CASE
                WHEN own_producer IS NULL THEN 2
                WHEN last_producer = of_producer AND last_epoch = of_epoch AND last_end = new_end
                    AND cause = 'client2' THEN 0
                WHEN own_producer <> of_producer AND last_producer <> of_producer THEN 2
                ELSE 1 END,
            own_producer, own_epoch, '{}'::uuid[], '{}'::integer[], '{}'::bigint[], '{}'::bigint[],
            '{}'::bigint[];
        RETURN;
    END IF;

    PERFORM 1 FROM groups AS g
    WHERE g.group_id = ANY (ARRAY(SELECT o.group_id FROM pending_offsets AS o
        WHERE o.producer_id = of_producer))
    ORDER BY g.group_id FOR NO KEY UPDATE;

    -- Not of partitions that are being deleted.
    SELECT array_agg(locked.topic_id), array_agg(locked.partition), array_agg(locked.high_watermark),
           array_agg(locked.max_timestamp_ms), array_agg(locked.first_offset),
           array_agg(locked.first_unstable_offset)
    INTO found_topics, found_numbers, markers, newest, firsts, unstables_before
    FROM (
        SELECT p.topic_id, p.partition, p.high_watermark, p.max_timestamp_ms, t.first_offset,
            p.first_unstable_offset
        FROM transaction_partitions AS t JOIN partitions AS p USING (topic_id, partition)
        WHERE t.producer_id = of_producer AND t.first_offset IS NOT NULL AND p.state = 'live'
        ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p) AS locked;

    DELETE FROM transaction_partitions AS t WHERE t.producer_id = of_producer;
    DELETE FROM transaction_groups AS g WHERE g.producer_id = of_producer;

    IF cardinality(found_topics) > 0 THEN
        INSERT INTO segments (segment_id, object_key, size_bytes, state, writer, lease_until, committed_at,
            outcome)
        VALUES (marker_segment, marker_key, marker_bytes, 'committed', 'transaction', clock_timestamp(),
            clock_timestamp(), '{}');

        -- Without timestamps: no record has a marker's time, and its age is that of its segment.
        INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length, format,
                          min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
        SELECT found_topics[part], found_numbers[part], markers[part], markers[part], marker_segment, 0,
               marker_bytes, 'marker', -1, -1, newest[part]
        FROM generate_series(1, cardinality(found_topics)) AS part;

        -- From the one before on: the index holds many dead entries of transactions that ended before that.
        SELECT array_agg(coalesce((
            SELECT t.first_offset FROM transaction_partitions AS t
            WHERE t.topic_id = found_topics[part] AND t.partition = found_numbers[part]
                AND t.first_offset >= unstables_before[part]
            ORDER BY t.first_offset LIMIT 1), -1) ORDER BY part)
        INTO unstables
        FROM generate_series(1, cardinality(found_topics)) AS part;

        UPDATE partitions AS p SET high_watermark = p.high_watermark + 1,
               size_bytes = p.size_bytes + marker_bytes,
               first_unstable_offset = nullif(unstables[given.part], -1)
        FROM generate_series(1, cardinality(found_topics)) AS given (part)
        WHERE p.topic_id = found_topics[given.part] AND p.partition = found_numbers[given.part];

        IF NOT is_commit THEN
            INSERT INTO aborted_transactions (topic_id, partition, last_offset, first_offset, producer_id,
                stable_offset)
            SELECT found_topics[part], found_numbers[part], markers[part], firsts[part], of_producer,
                   CASE WHEN unstables[part] < 0 THEN markers[part] + 1 ELSE unstables[part] END
            FROM generate_series(1, cardinality(found_topics)) AS part;
        END IF;
    END IF;

    IF is_commit THEN
        INSERT INTO committed_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch,
            metadata)
        SELECT g.group_id, g.topic_id, g.partition, g.committed_offset, g.leader_epoch, g.metadata
        FROM (SELECT * FROM pending_offsets AS o WHERE o.producer_id = of_producer OFFSET 0) AS g
        WHERE EXISTS (SELECT FROM groups WHERE groups.group_id = g.group_id)
        ORDER BY g.group_id, g.topic_id, g.partition
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata,
            committed_at = excluded.committed_at;
    END IF;
    DELETE FROM pending_offsets AS o WHERE o.producer_id = of_producer;

    -- 32767, the last epoch, is only for fencing: a client goes on with another producer id before it.
    IF cause = 'client2' AND of_epoch >= 32766 THEN
        next_producer := new_producer_id();
        next_epoch := 0;
    ELSE
        next_producer := of_producer;
        next_epoch := CASE WHEN cause = 'client' THEN of_epoch ELSE least(of_epoch + 1, 32767) END;
    END IF;
    -- A producer that was fenced must not come back. One whose time ran out may.
    UPDATE transactions AS t SET producer_id = next_producer, producer_epoch = next_epoch, ended = new_end,
        changed_at = clock_timestamp(),
        last_producer_id = CASE cause WHEN 'fence' THEN -1 WHEN 'client' THEN last_producer
            ELSE of_producer END,
        last_producer_epoch = CASE cause WHEN 'fence' THEN -1 WHEN 'client' THEN last_epoch
            ELSE of_epoch END
    WHERE t.transactional_id = id;
    RETURN QUERY SELECT 0, next_producer, next_epoch, coalesce(found_topics, '{}'),
        coalesce(found_numbers, '{}'),
        coalesce(markers, '{}'), coalesce(firsts, '{}'), coalesce(unstables, '{}');
END
$function$;
