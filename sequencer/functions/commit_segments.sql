-- commit_segments gives offsets to the batches of uploaded segments. It is the authority on every outcome.
-- The fast path `sequence_segments` calls it for each commit in which something must be judged.
--
-- Statement 1 only locks: the transactions' rows by producer id (FOR SHARE: only their end waits), the
-- segments' rows by id, then the partitions' rows by primary key. It is a PERFORM of a locking SELECT, which
-- a planner cannot drop. Statement 2 takes its snapshot afterwards (VOLATILE, READ COMMITTED). So it reads
-- everything as the last holder of those locks left it. One statement would read the locked rows again after
-- a wait, but everything else as it was before the wait [raced].
--
-- It takes time in proportion to the batches: the fold finds a producer's next chain by its place in an
-- array. It sets its own join methods, because the settings of a caller (sequence_segments) hold in here,
-- too.
--
-- A chain is the batches of one producer, for one partition, in one segment, whose sequences follow one
-- another. Batches are ordered by partition, then segment, then place in the segment. All numbers count
-- from 1. A producer that waits for its answers has a handful of chains in a commit. Of one that has more
-- than 1,000 in a partition the rest is out of order, and not looked at.
--
-- | parameter | type | one entry per | meaning |
-- |---|---|---|---|
-- | segment_ids | uuid | segment | the segments in the order of the commit |
-- | segment_sizes | bigint | segment | bytes of the object |
-- | topic_ids, partition_numbers | uuid, integer | partition | the distinct partitions in primary-key order |
-- | chain_parts | integer | chain | number of its partition |
-- | chain_producers | bigint | chain | producer id |
-- | chain_epochs | integer | chain | producer epoch |
-- | chain_transactions | integer | chain | 0 none, 1 was added, 2 adds its partition; empty: all 0 |
-- | batch_parts | integer | batch | number of its partition |
-- | batch_segments | integer | batch | number of its segment |
-- | batch_positions | bigint | batch | first byte in the object |
-- | batch_lengths | integer | batch | bytes |
-- | batch_records | integer | batch | records |
-- | batch_min_timestamps, batch_max_timestamps | bigint | batch | milliseconds since 1970, or -1 |
-- | batch_chains | integer | batch | number of its chain; 0: it has no producer |
-- | batch_members | integer | batch | its place in the chain |
-- | batch_sequences | integer | batch | its base sequence |
--
-- Returns one row per segment, in the order given:
-- | column | meaning |
-- |---|---|
-- | state | `committed`, `doomed` or `missing` |
-- | object_key | of the segment |
-- | outcome | one number per batch in the order given; then, per duplicate, its first maximum timestamp |
--
-- The number of a batch is kind + 8 * offset. Kinds: 0 assigned, 1 duplicate, 2 out of order, 3 fenced epoch,
-- 4 unknown producer (the offset is the log start), 5 unknown partition, 6 written before, its offset is
-- forgotten, 7 not in an open transaction of this epoch (docs/design/transactions.md).
-- `sequencer/commits/outcomes.py` reads them. A repeated commit gets the same outcome again, from the
-- segment's row or from `outcomes`.
CREATE FUNCTION commit_segments(
    segment_ids uuid[], segment_sizes bigint[],
    topic_ids uuid[], partition_numbers integer[],
    chain_parts integer[], chain_producers bigint[], chain_epochs integer[], chain_transactions integer[],
    batch_parts integer[], batch_segments integer[], batch_positions bigint[], batch_lengths integer[],
    batch_records integer[],
    batch_min_timestamps bigint[], batch_max_timestamps bigint[],
    batch_chains integer[], batch_members integer[], batch_sequences integer[])
RETURNS TABLE (state text, object_key text, outcome bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of index look-ups: it must not be chosen again for each call, nor scan a table
-- that was small when it was made.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = on
SET enable_mergejoin = on
SET enable_material = on
SET enable_bitmapscan = on
AS $function$
#variable_conflict use_column
BEGIN
    IF cardinality(chain_transactions) > 0 THEN
        PERFORM 1
        FROM (SELECT DISTINCT number AS producer_id FROM unnest(chain_producers) AS number
            ORDER BY number) AS given
        CROSS JOIN LATERAL (
            SELECT 1 FROM transactions AS t WHERE t.producer_id = given.producer_id FOR SHARE) AS own;
    END IF;
    PERFORM 1 FROM segments WHERE segment_id = ANY (segment_ids) ORDER BY segment_id FOR NO KEY UPDATE;
    PERFORM 1
    FROM unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
        JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p;

    RETURN QUERY
    WITH RECURSIVE segment AS MATERIALIZED (
        SELECT given.segment, given.size_bytes, stored.*
        FROM unnest(segment_ids, segment_sizes) WITH ORDINALITY AS given (segment_id, size_bytes, segment)
        LEFT JOIN LATERAL (
            SELECT s.ctid AS row, s.state, s.object_key, s.outcome FROM segments AS s
            WHERE s.segment_id = given.segment_id OFFSET 0) AS stored ON true
    ), part AS MATERIALIZED (
        SELECT given.part, stored.*
        FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, partition, part)
        CROSS JOIN LATERAL (
            SELECT p.ctid AS row, p.* FROM partitions AS p
            WHERE p.topic_id = given.topic_id AND p.partition = given.partition
                AND p.state = 'live' OFFSET 0) AS stored
    ), batch AS MATERIALIZED (
        -- Numbered without gaps, so that the number is a place in the arrays made below.
        SELECT given.*, row_number() OVER (ORDER BY given.place)::integer AS batch,
               given.base_sequence::bigint << 31
               | ((given.base_sequence::bigint + given.records - 1) & 2147483647) AS sequences
        FROM unnest(batch_parts, batch_segments, batch_positions, batch_lengths, batch_records,
                    batch_min_timestamps, batch_max_timestamps, batch_chains, batch_members, batch_sequences)
             WITH ORDINALITY AS given (
                    part, segment, position, length, records,
                    min_timestamp_ms, max_timestamp_ms, chain, member, base_sequence, place)
        JOIN segment ON segment.segment = given.segment AND segment.state = 'reserved'
    ), members AS MATERIALIZED (
        SELECT chain, batch, base_sequence, sequences, max_timestamp_ms,
            row_number() OVER (ORDER BY chain, batch) AS place
        FROM batch WHERE chain > 0
    ), chain AS MATERIALIZED (
        -- Of a chain in a transaction, `refusal` says why the transaction does not take it.
        SELECT given.*, of_chain.first, of_chain.last,
            CASE WHEN coalesce(chain_transactions[given.chain], 0) > 0 THEN (
                SELECT CASE WHEN max(t.producer_epoch) > given.producer_epoch THEN 3
                     WHEN max(t.producer_epoch) IS DISTINCT FROM given.producer_epoch THEN 7
                     WHEN chain_transactions[given.chain] = 1 AND NOT EXISTS (
                         SELECT FROM transaction_partitions AS added
                         WHERE added.producer_id = given.producer_id AND added.topic_id = part.topic_id
                             AND added.partition = part.partition) THEN 7 END
                FROM transactions AS t WHERE t.producer_id = given.producer_id) END AS refusal,
            row_number() OVER (ORDER BY given.part, given.producer_id, given.chain) AS place
        FROM unnest(chain_parts, chain_producers, chain_epochs)
             WITH ORDINALITY AS given (part, producer_id, producer_epoch, chain)
        JOIN (SELECT chain, min(place) AS first, max(place) AS last FROM members
            GROUP BY chain) AS of_chain ON of_chain.chain = given.chain
        JOIN part ON part.part = given.part
    ), flat AS MATERIALIZED (
        -- The same as arrays: a look at a place in them costs the same wherever it is. Batches lie chain
        -- after chain, chains producer after producer; a chain's batches are the places from its first to
        -- its last.
        SELECT * FROM (
            SELECT array_agg(base_sequence ORDER BY place) AS base_sequences,
                   array_agg(sequences ORDER BY place) AS sequences,
                   array_agg(-batch::bigint ORDER BY place) AS base_offsets,
                   array_agg(max_timestamp_ms ORDER BY place) AS max_timestamps
            FROM members) AS of_members, (
            SELECT array_agg(chain ORDER BY place) AS chains,
                   array_agg(producer_epoch ORDER BY place) AS epochs,
                   array_agg(refusal ORDER BY place) AS refusals,
                   array_agg(first ORDER BY place) AS firsts, array_agg(last ORDER BY place) AS lasts
            FROM chain) AS of_chains
    ), fold AS (
        -- A producer's chains in turn, each judged against the state that its predecessors left, before
        -- them the stored state. Within a chain only one batch can be the next expected: from it on
        -- (accepted_from) all follow, those before it are duplicates or rejected. (Sequences would have to
        -- go once around within a chain for it to be otherwise: 2^31 records.) A base offset that is not
        -- known yet stands in the state as minus the batch's number. `expected` is the next sequence before
        -- the chain, if its epoch is the state's.
        SELECT producer.part, producer.producer_id, producer.first - 1 AS turn, producer.last,
               NULL::bigint AS chain,
               NULL::integer AS accepted_from, NULL::integer AS rejection,
               NULL::bigint[] AS seen_sequences, NULL::bigint[] AS seen_offsets,
               NULL::bigint[] AS seen_timestamps,
               NULL::bigint AS expected,
               stored.producer_epoch, stored.sequences, stored.base_offsets, stored.max_timestamps
        FROM (
            SELECT part, producer_id, min(place) AS first, least(max(place), min(place) + 999) AS last
                FROM chain GROUP BY part, producer_id
        ) AS producer JOIN part ON part.part = producer.part
        LEFT JOIN LATERAL (
            SELECT s.producer_epoch, s.sequences, s.base_offsets, s.max_timestamps FROM producer_state AS s
            WHERE s.topic_id = part.topic_id AND s.partition = part.partition
                AND s.producer_id = producer.producer_id OFFSET 0
        ) AS stored ON true
        UNION ALL
        SELECT f.part, f.producer_id, f.turn + 1, f.last, c.chain, decided.accepted_from,
               CASE WHEN c.refusal IS NOT NULL THEN c.refusal WHEN f.producer_epoch IS NULL THEN 4
                   WHEN c.producer_epoch < f.producer_epoch THEN 3 ELSE 2 END,
               same.sequences, same.base_offsets, same.max_timestamps, same.expected,
               CASE WHEN decided.accepted_from IS NULL THEN f.producer_epoch ELSE c.producer_epoch END,
               reached.sequences[greatest(cardinality(reached.sequences) - 9, 1):],
               reached.base_offsets[greatest(cardinality(reached.base_offsets) - 9, 1):],
               reached.max_timestamps[greatest(cardinality(reached.max_timestamps) - 9, 1):]
        FROM fold AS f CROSS JOIN flat
        CROSS JOIN LATERAL (
            SELECT flat.chains[f.turn + 1] AS chain, flat.epochs[f.turn + 1] AS producer_epoch,
                   flat.refusals[f.turn + 1] AS refusal, flat.firsts[f.turn + 1] AS first,
                   flat.lasts[f.turn + 1] AS last) AS place
        CROSS JOIN LATERAL (
            SELECT place.chain, place.producer_epoch, place.refusal,
                   flat.base_sequences[place.first:place.last] AS base_sequences,
                       flat.sequences[place.first:place.last] AS sequences,
                   flat.base_offsets[place.first:place.last] AS base_offsets,
                   flat.max_timestamps[place.first:place.last] AS max_timestamps
        ) AS c
        CROSS JOIN LATERAL (
            SELECT CASE WHEN c.producer_epoch = f.producer_epoch THEN f.sequences END AS sequences,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.base_offsets END AS base_offsets,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.max_timestamps END AS max_timestamps,
                   CASE WHEN c.producer_epoch = f.producer_epoch
                        THEN (f.sequences[cardinality(f.sequences)] + 1) & 2147483647 END AS expected) AS same
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN c.refusal IS NOT NULL THEN NULL
                WHEN f.producer_epoch IS NULL OR c.producer_epoch > f.producer_epoch
                    THEN array_position(c.base_sequences, 0)
                WHEN c.producer_epoch = f.producer_epoch
                    THEN array_position(c.base_sequences, same.expected::integer)
                END AS accepted_from) AS decided
        CROSS JOIN LATERAL (
            SELECT CASE WHEN decided.accepted_from IS NULL THEN f.sequences
                        ELSE same.sequences || c.sequences[decided.accepted_from:] END AS sequences,
                   CASE WHEN decided.accepted_from IS NULL THEN f.base_offsets
                        ELSE same.base_offsets || c.base_offsets[decided.accepted_from:] END AS base_offsets,
                   CASE WHEN decided.accepted_from IS NULL THEN f.max_timestamps
                        ELSE same.max_timestamps || c.max_timestamps[decided.accepted_from:] END
                            AS max_timestamps
        ) AS reached
        WHERE f.turn < f.last
    ), verdict AS MATERIALIZED (
        -- What lies wholly before the next expected sequence of its epoch was accepted once, since nothing
        -- is accepted but in turn; how far back "before" reaches is half the circle. A state that is not
        -- there was never there, unless it may have been forgotten: the producer id (which says in which
        -- millisecond it was given out) is older than what expiry removed, or than the topic.
        SELECT batch.*, part.high_watermark, part.log_start_offset,
               fold.seen_offsets[duplicate.place] AS first_offset,
                   fold.seen_timestamps[duplicate.place] AS first_timestamp_ms,
               CASE WHEN part.part IS NULL THEN 5
                    WHEN batch.chain = 0 OR batch.member >= fold.accepted_from THEN 0
                    WHEN duplicate.place IS NOT NULL THEN 1
                    WHEN (fold.expected - batch.base_sequence) & 2147483647 BETWEEN batch.records
                        AND 1073741824 THEN 6
                    WHEN fold.rejection = 4
                        AND to_timestamp(((fold.producer_id >> 10) + 1) / 1000.0) >= greatest(
                        (SELECT forgotten_before FROM producer_ids WHERE only_row),
                        (SELECT created_at FROM topics AS t WHERE t.topic_id = part.topic_id)) THEN 2
                    ELSE coalesce(fold.rejection, 2) END AS kind
        FROM batch LEFT JOIN part ON part.part = batch.part LEFT JOIN fold ON fold.chain = batch.chain
        CROSS JOIN LATERAL (SELECT array_position(fold.seen_sequences, batch.sequences) AS place) AS duplicate
    ), placed AS MATERIALIZED (
        SELECT verdict.*,
               CASE WHEN kind = 0 THEN high_watermark + sum(records) OVER earlier - records END
                   AS base_offset,
               lag(segment) OVER earlier IS DISTINCT FROM segment
               OR lag(position + length) OVER earlier <> position AS starts_run
        FROM verdict
        WINDOW earlier AS (PARTITION BY part, kind = 0 ORDER BY batch ROWS UNBOUNDED PRECEDING)
    ), offsets AS MATERIALIZED (
        SELECT array_agg(coalesce(base_offset, -1) ORDER BY batch) AS of_batch FROM placed
    ), member_of_run AS (
        SELECT placed.*, count(*) FILTER (WHERE starts_run) OVER (PARTITION BY part
            ORDER BY batch ROWS UNBOUNDED PRECEDING) AS run
        FROM placed WHERE kind = 0
    ), run AS (
        SELECT part, run, min(segment) AS segment, min(base_offset) AS base_offset,
               max(base_offset + records - 1) AS last_offset,
               min(position) AS position, sum(length) AS length,
               min(min_timestamp_ms) AS min_timestamp_ms, max(max_timestamp_ms) AS max_timestamp_ms
        FROM member_of_run GROUP BY part, run
    ), inserted AS (
        INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                          min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
        SELECT part.topic_id, part.partition, run.base_offset, run.last_offset, segment_ids[run.segment],
               run.position, run.length,
               run.min_timestamp_ms, run.max_timestamp_ms,
               greatest(part.max_timestamp_ms,
               max(run.max_timestamp_ms) OVER (PARTITION BY run.part ORDER BY run.run))
        FROM run JOIN part ON part.part = run.part
    ), opened AS (
        -- Where each transaction's accepted records begin in this commit.
        SELECT part, chain_producers[chain] AS producer_id, min(base_offset) AS first_offset
        FROM placed WHERE kind = 0 AND chain_transactions[chain] > 0
        GROUP BY part, chain_producers[chain]
    ), total AS (
        SELECT part, sum(records) AS records, sum(length) AS length,
               max(max_timestamp_ms) AS max_timestamp_ms,
               min(base_offset) FILTER (WHERE chain_transactions[chain] > 0) AS first_in_transaction
        FROM placed WHERE kind = 0 GROUP BY part
    ), advanced AS (
        -- By ctid, here and below: the rows are locked, so they are where statement 2 saw them.
        UPDATE partitions SET high_watermark = part.high_watermark + total.records,
               size_bytes = part.size_bytes + total.length,
               max_timestamp_ms = greatest(part.max_timestamp_ms, total.max_timestamp_ms),
               first_unstable_offset = coalesce(part.first_unstable_offset, total.first_in_transaction)
        FROM total JOIN part ON part.part = total.part
        WHERE partitions.ctid = part.row
    ), entered AS (
        INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
        SELECT opened.producer_id, part.topic_id, part.partition, opened.first_offset,
            clock_timestamp() + make_interval(secs => (
                SELECT timeout_ms FROM transactions AS own
                WHERE own.producer_id = opened.producer_id) / 1000.0)
        FROM opened JOIN part ON part.part = opened.part
        ORDER BY opened.producer_id, part.topic_id, part.partition
        ON CONFLICT (producer_id, topic_id, partition) DO UPDATE SET first_offset = excluded.first_offset
        WHERE t.first_offset IS NULL
    ), remembered AS (
        -- A state whose newest offset is a number of this commit's batches has changed.
        INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences,
            base_offsets, max_timestamps)
        SELECT part.topic_id, part.partition, latest.producer_id, latest.producer_epoch, latest.sequences,
            ARRAY(
            SELECT CASE WHEN base_offset < 0 THEN (SELECT of_batch FROM offsets)[-base_offset::integer]
                ELSE base_offset END
            FROM unnest(latest.base_offsets) WITH ORDINALITY AS known (base_offset, place) ORDER BY place),
                latest.max_timestamps
        FROM (SELECT DISTINCT ON (part, producer_id) * FROM fold
            ORDER BY part, producer_id, turn DESC) AS latest
        JOIN part ON part.part = latest.part
        WHERE latest.base_offsets[cardinality(latest.base_offsets)] < 0
        ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, sequences = excluded.sequences,
            base_offsets = excluded.base_offsets,
            max_timestamps = excluded.max_timestamps, updated_at = excluded.updated_at
    ), decided AS MATERIALIZED (
        SELECT segment, array_agg(kind + 8 * CASE kind
            WHEN 0 THEN base_offset
            WHEN 1 THEN CASE WHEN first_offset < 0
                THEN (SELECT of_batch FROM offsets)[-first_offset::integer] ELSE first_offset END
            WHEN 4 THEN log_start_offset
            ELSE 0 END ORDER BY batch)
            || coalesce(array_agg(first_timestamp_ms ORDER BY batch) FILTER (WHERE kind = 1), '{}') AS outcome
        FROM placed GROUP BY segment
    ), committed AS (
        UPDATE segments SET state = 'committed', size_bytes = segment.size_bytes,
               committed_at = clock_timestamp(),
               outcome = coalesce(decided.outcome, '{}')
        FROM segment LEFT JOIN decided ON decided.segment = segment.segment
        WHERE segments.ctid = segment.row AND segment.state = 'reserved'
    )
    -- A repeat of a commit gets its first outcome, even if the segment has become garbage since and its
    -- object is deleted. The outcome is in the segment's row, later in `outcomes`. If it is in neither, it
    -- is not known any more, and the answer is: missing.
    SELECT CASE WHEN segment.state = 'reserved' OR coalesce(segment.outcome, kept.outcome) IS NOT NULL
                THEN 'committed'
                WHEN segment.state = 'doomed' THEN 'doomed' ELSE 'missing' END,
           coalesce(segment.object_key, kept.object_key),
               coalesce(segment.outcome, kept.outcome, decided.outcome, '{}')
    FROM segment LEFT JOIN decided ON decided.segment = segment.segment
    LEFT JOIN LATERAL (
        SELECT * FROM kept_outcome(segment_ids[segment.segment])
        WHERE segment.outcome IS NULL AND segment.state IS DISTINCT FROM 'reserved') AS kept ON true
    ORDER BY segment.segment;
END
$function$;
