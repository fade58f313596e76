-- Producers (DESIGN §4, producer state): a batch repeated late is known for what it is, a batch that came too early is not taken for one of
-- a producer that was forgotten, and a duplicate is answered with the time that its first copy was given.

-- Ten batches are remembered now: five in flight at the agent that a partition moved from, five at the one that it moved to.
ALTER TABLE producer_state ADD COLUMN max_timestamps bigint[] NOT NULL DEFAULT '{}';
UPDATE producer_state SET max_timestamps = array_fill(-1::bigint, ARRAY[cardinality(sequences)]);
ALTER TABLE producer_state ALTER COLUMN max_timestamps DROP DEFAULT;

-- An id says when it was given out: milliseconds since 1970 * 2^10 + a count, always rising. With it `forgotten_before` (every state that
-- expiry ever removed had last been written before it) tells whether the state of a producer can have been there at all.
DROP SEQUENCE producer_ids;
CREATE TABLE producer_ids (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_id bigint NOT NULL DEFAULT 0,
    forgotten_before timestamptz NOT NULL DEFAULT clock_timestamp()   -- states removed before this migration left no note
) WITH (fillfactor = 50);
INSERT INTO producer_ids DEFAULT VALUES;

-- commit_segments: offsets for the batches of uploaded segments (DESIGN §4, Commit).
--
-- Statement 1 only locks: the segment rows in id order, then the partition rows in primary-key order; as PERFORM of a locking SELECT it cannot
-- be dropped from a plan. Statement 2 takes its snapshot afterwards (VOLATILE, READ COMMITTED) and so reads everything as the last
-- holder of those locks left it. In one statement the locked rows would be re-read after a wait, but all else seen as before it [raced].
--
-- Given, as parallel arrays: segments in commit order; the distinct partitions in primary-key order; chains, that is one producer's batches of
-- one partition within one segment whose sequences follow one another; batches ordered by partition, then segment, then place in
-- the segment. `part`, `segment` and `chain` are positions in those arrays, from 1; a batch without a producer is in chain 0.
--
-- Returned per segment: state committed, doomed or missing; the object's key; the outcome, one number per batch in the order given, namely
-- kind + 8 * offset, with kind 0 assigned, 1 duplicate, 2 out of order, 3 fenced epoch, 4 unknown producer (log start offset), 5
-- unknown partition, 6 written before, where is forgotten; then, for each duplicate in order, its maximum timestamp as it was written.
-- `sequencer/outcomes.py` is its other end.
CREATE OR REPLACE FUNCTION commit_segments(
    segment_ids uuid[], segment_sizes bigint[],
    topic_ids uuid[], partition_numbers integer[],
    chain_parts integer[], chain_producers bigint[], chain_epochs integer[],
    batch_parts integer[], batch_segments integer[], batch_positions bigint[], batch_lengths integer[], batch_records integer[],
    batch_min_timestamps bigint[], batch_max_timestamps bigint[],
    batch_chains integer[], batch_members integer[], batch_sequences integer[])
RETURNS TABLE (state text, object_key text, outcome bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of index look-ups: it must not be chosen anew per call, nor scan a table that was small when it was made.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM segments WHERE segment_id = ANY (segment_ids) ORDER BY segment_id FOR NO KEY UPDATE;
    PERFORM 1
    FROM unnest(topic_ids, partition_numbers) AS given (topic_id, partition) JOIN partitions AS p USING (topic_id, partition)
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
            WHERE p.topic_id = given.topic_id AND p.partition = given.partition AND p.state = 'live' OFFSET 0) AS stored
    ), batch AS MATERIALIZED (
        -- Numbered without gaps, so that the number is a place in the arrays made below.
        SELECT given.*, row_number() OVER (ORDER BY given.place)::integer AS batch,
               given.base_sequence::bigint << 31 | ((given.base_sequence::bigint + given.records - 1) & 2147483647) AS sequences
        FROM unnest(batch_parts, batch_segments, batch_positions, batch_lengths, batch_records, batch_min_timestamps,
                    batch_max_timestamps, batch_chains, batch_members, batch_sequences) WITH ORDINALITY AS given (
                    part, segment, position, length, records, min_timestamp_ms,
                    max_timestamp_ms, chain, member, base_sequence, place)
        JOIN segment ON segment.segment = given.segment AND segment.state = 'reserved'
    ), members AS MATERIALIZED (
        SELECT chain, array_agg(base_sequence ORDER BY batch) AS base_sequences, array_agg(sequences ORDER BY batch) AS sequences,
               array_agg(-batch::bigint ORDER BY batch) AS base_offsets, array_agg(max_timestamp_ms ORDER BY batch) AS max_timestamps
        FROM batch WHERE chain > 0 GROUP BY chain
    ), chain AS MATERIALIZED (
        SELECT given.*, members.base_sequences, members.sequences, members.base_offsets, members.max_timestamps,
               row_number() OVER (PARTITION BY given.part, given.producer_id ORDER BY given.chain) AS turn
        FROM unnest(chain_parts, chain_producers, chain_epochs)
             WITH ORDINALITY AS given (part, producer_id, producer_epoch, chain)
        JOIN members ON members.chain = given.chain
        JOIN part ON part.part = given.part
    ), fold AS (
        -- A producer's chains in turn, each judged against the state that its predecessors left; turn 0 is the stored state. Within a chain
        -- only one batch can be the next expected: from it on (accepted_from) all follow, those before it are duplicates or
        -- rejected. (Sequences would have to go once around within a chain for it to be otherwise: 2^31 records.) A base offset that is not
        -- known yet stands in the state as minus the batch's number. `expected` is the next sequence before the chain, if its epoch is the
        -- state's.
        SELECT c.part, c.producer_id, 0::bigint AS turn, NULL::bigint AS chain,
               NULL::integer AS accepted_from, NULL::integer AS rejection,
               NULL::bigint[] AS seen_sequences, NULL::bigint[] AS seen_offsets, NULL::bigint[] AS seen_timestamps,
               NULL::bigint AS expected,
               stored.producer_epoch, stored.sequences, stored.base_offsets, stored.max_timestamps
        FROM chain AS c JOIN part ON part.part = c.part
        LEFT JOIN LATERAL (
            SELECT s.producer_epoch, s.sequences, s.base_offsets, s.max_timestamps FROM producer_state AS s
            WHERE s.topic_id = part.topic_id AND s.partition = part.partition AND s.producer_id = c.producer_id OFFSET 0
        ) AS stored ON true
        WHERE c.turn = 1
        UNION ALL
        SELECT c.part, c.producer_id, c.turn, c.chain, decided.accepted_from,
               CASE WHEN f.producer_epoch IS NULL THEN 4 WHEN c.producer_epoch < f.producer_epoch THEN 3 ELSE 2 END,
               same.sequences, same.base_offsets, same.max_timestamps, same.expected,
               CASE WHEN decided.accepted_from IS NULL THEN f.producer_epoch ELSE c.producer_epoch END,
               reached.sequences[greatest(cardinality(reached.sequences) - 9, 1):],
               reached.base_offsets[greatest(cardinality(reached.base_offsets) - 9, 1):],
               reached.max_timestamps[greatest(cardinality(reached.max_timestamps) - 9, 1):]
        FROM fold AS f JOIN chain AS c ON c.part = f.part AND c.producer_id = f.producer_id AND c.turn = f.turn + 1
        CROSS JOIN LATERAL (
            SELECT CASE WHEN c.producer_epoch = f.producer_epoch THEN f.sequences END AS sequences,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.base_offsets END AS base_offsets,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.max_timestamps END AS max_timestamps,
                   CASE WHEN c.producer_epoch = f.producer_epoch
                        THEN (f.sequences[cardinality(f.sequences)] + 1) & 2147483647 END AS expected) AS same
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN f.producer_epoch IS NULL OR c.producer_epoch > f.producer_epoch THEN array_position(c.base_sequences, 0)
                WHEN c.producer_epoch = f.producer_epoch THEN array_position(c.base_sequences, same.expected::integer)
                END AS accepted_from) AS decided
        CROSS JOIN LATERAL (
            SELECT CASE WHEN decided.accepted_from IS NULL THEN f.sequences
                        ELSE same.sequences || c.sequences[decided.accepted_from:] END AS sequences,
                   CASE WHEN decided.accepted_from IS NULL THEN f.base_offsets
                        ELSE same.base_offsets || c.base_offsets[decided.accepted_from:] END AS base_offsets,
                   CASE WHEN decided.accepted_from IS NULL THEN f.max_timestamps
                        ELSE same.max_timestamps || c.max_timestamps[decided.accepted_from:] END AS max_timestamps) AS reached
    ), verdict AS MATERIALIZED (
        -- What lies wholly before the next expected sequence of its epoch was accepted once, since nothing is accepted but in turn; how far
        -- back "before" reaches is half the circle. A state that is not there was never there, unless it may have been forgotten: the
        -- producer id (which says in which millisecond it was given out) is older than what expiry removed, or than the topic.
        SELECT batch.*, part.high_watermark, part.log_start_offset,
               fold.seen_offsets[duplicate.place] AS first_offset, fold.seen_timestamps[duplicate.place] AS first_timestamp_ms,
               CASE WHEN part.part IS NULL THEN 5
                    WHEN batch.chain = 0 OR batch.member >= fold.accepted_from THEN 0
                    WHEN duplicate.place IS NOT NULL THEN 1
                    WHEN (fold.expected - batch.base_sequence) & 2147483647 BETWEEN batch.records AND 1073741824 THEN 6
                    WHEN fold.rejection = 4 AND to_timestamp(((fold.producer_id >> 10) + 1) / 1000.0) >= greatest(
                        (SELECT forgotten_before FROM producer_ids WHERE only_row),
                        (SELECT created_at FROM topics AS t WHERE t.topic_id = part.topic_id)) THEN 2
                    ELSE fold.rejection END AS kind
        FROM batch LEFT JOIN part ON part.part = batch.part LEFT JOIN fold ON fold.chain = batch.chain
        CROSS JOIN LATERAL (SELECT array_position(fold.seen_sequences, batch.sequences) AS place) AS duplicate
    ), placed AS MATERIALIZED (
        SELECT verdict.*,
               CASE WHEN kind = 0 THEN high_watermark + sum(records) OVER earlier - records END AS base_offset,
               lag(segment) OVER earlier IS DISTINCT FROM segment OR lag(position + length) OVER earlier <> position AS starts_run
        FROM verdict
        WINDOW earlier AS (PARTITION BY part, kind = 0 ORDER BY batch ROWS UNBOUNDED PRECEDING)
    ), offsets AS MATERIALIZED (
        SELECT array_agg(coalesce(base_offset, -1) ORDER BY batch) AS of_batch FROM placed
    ), member_of_run AS (
        SELECT placed.*, count(*) FILTER (WHERE starts_run) OVER (PARTITION BY part ORDER BY batch ROWS UNBOUNDED PRECEDING) AS run
        FROM placed WHERE kind = 0
    ), run AS (
        SELECT part, run, min(segment) AS segment, min(base_offset) AS base_offset, max(base_offset + records - 1) AS last_offset,
               min(position) AS position, sum(length) AS length,
               min(min_timestamp_ms) AS min_timestamp_ms, max(max_timestamp_ms) AS max_timestamp_ms
        FROM member_of_run GROUP BY part, run
    ), inserted AS (
        INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                          min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
        SELECT part.topic_id, part.partition, run.base_offset, run.last_offset, segment_ids[run.segment], run.position, run.length,
               run.min_timestamp_ms, run.max_timestamp_ms,
               greatest(part.max_timestamp_ms, max(run.max_timestamp_ms) OVER (PARTITION BY run.part ORDER BY run.run))
        FROM run JOIN part ON part.part = run.part
    ), total AS (
        SELECT part, sum(records) AS records, sum(length) AS length, max(max_timestamp_ms) AS max_timestamp_ms
        FROM placed WHERE kind = 0 GROUP BY part
    ), advanced AS (
        -- By ctid, here and below: the rows are locked, so they are where statement 2 saw them.
        UPDATE partitions SET high_watermark = part.high_watermark + total.records, size_bytes = part.size_bytes + total.length,
               max_timestamp_ms = greatest(part.max_timestamp_ms, total.max_timestamp_ms)
        FROM total JOIN part ON part.part = total.part
        WHERE partitions.ctid = part.row
    ), remembered AS (
        -- A state whose newest offset is a number of this commit's batches has changed.
        INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets, max_timestamps)
        SELECT part.topic_id, part.partition, latest.producer_id, latest.producer_epoch, latest.sequences, ARRAY(
            SELECT CASE WHEN base_offset < 0 THEN (SELECT of_batch FROM offsets)[-base_offset::integer] ELSE base_offset END
            FROM unnest(latest.base_offsets) WITH ORDINALITY AS known (base_offset, place) ORDER BY place), latest.max_timestamps
        FROM (SELECT DISTINCT ON (part, producer_id) * FROM fold ORDER BY part, producer_id, turn DESC) AS latest
        JOIN part ON part.part = latest.part
        WHERE latest.base_offsets[cardinality(latest.base_offsets)] < 0
        ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, sequences = excluded.sequences, base_offsets = excluded.base_offsets,
            max_timestamps = excluded.max_timestamps, updated_at = excluded.updated_at
    ), decided AS MATERIALIZED (
        SELECT segment, array_agg(kind + 8 * CASE kind
            WHEN 0 THEN base_offset
            WHEN 1 THEN CASE WHEN first_offset < 0 THEN (SELECT of_batch FROM offsets)[-first_offset::integer] ELSE first_offset END
            WHEN 4 THEN log_start_offset
            ELSE 0 END ORDER BY batch)
            || coalesce(array_agg(first_timestamp_ms ORDER BY batch) FILTER (WHERE kind = 1), '{}') AS outcome
        FROM placed GROUP BY segment
    ), committed AS (
        UPDATE segments SET state = 'committed', size_bytes = segment.size_bytes, committed_at = clock_timestamp(),
               outcome = coalesce(decided.outcome, '{}')
        FROM segment LEFT JOIN decided ON decided.segment = segment.segment
        WHERE segments.ctid = segment.row AND segment.state = 'reserved'
    )
    -- What was committed once stays so for whoever repeats it, even when it has since become garbage and was doomed.
    SELECT CASE WHEN segment.state = 'reserved' OR segment.outcome IS NOT NULL THEN 'committed'
                ELSE coalesce(segment.state, 'missing') END,
           segment.object_key, coalesce(segment.outcome, decided.outcome, '{}')
    FROM segment LEFT JOIN decided ON decided.segment = segment.segment
    ORDER BY segment.segment;
END
$function$;
