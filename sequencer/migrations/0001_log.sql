-- The log (DESIGN §4): who the cluster is, what topics there are, which object holds which offsets, and who works on it.
--
-- No foreign keys between hot tables: their KEY SHARE locks deadlock with the commit's. Hot rows are updated in place (fillfactor, and no
-- index on a column that a commit changes). Row locks are taken in one order everywhere: topics, segments (by id), partitions (by primary
-- key), runs, producer_state. Whoever inserts, deletes or replaces runs, or moves log_start_offset, holds the partition row.

CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- 16 random bytes in URL-safe base64 without padding: 22 characters, as Kafka writes a cluster id.
INSERT INTO cluster (cluster_id)
SELECT translate(rtrim(encode(uuid_send(gen_random_uuid()), 'base64'), '='), '+/', '-_');

CREATE SEQUENCE producer_ids AS bigint START 1 CACHE 1;
CREATE SEQUENCE node_ids AS integer START 1 CACHE 1;

CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL DEFAULT '{}',            -- what was set; defaults live in the code
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz                         -- the name is free from then on; the row goes when its partitions have gone
);
CREATE UNIQUE INDEX topics_by_live_name ON topics (name) WHERE deleted_at IS NULL;
CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    state text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'deleting')),
    log_start_offset bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0 CHECK (high_watermark >= log_start_offset),
    max_timestamp_ms bigint NOT NULL DEFAULT -1,   -- over all records ever committed: the running maximum of the next run starts here
    size_bytes bigint NOT NULL DEFAULT 0,          -- of its runs
    coordinate_epoch bigint NOT NULL DEFAULT 0,    -- raised when coordinates that an agent may have cached stop being true
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);

CREATE TABLE segments (
    segment_id uuid PRIMARY KEY,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,          -- 0 until committed
    state text NOT NULL DEFAULT 'reserved' CHECK (state IN ('reserved', 'committed', 'doomed')),
    writer text NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,              -- of the reservation
    committed_at timestamptz,
    outcome bigint[],                              -- of the commit, one number per batch (commits.sql); repeated verbatim
    unreferenced_since timestamptz,                -- first seen without runs, snapshots and holds; the grace period starts here
    doomed_at timestamptz,
    deleted_at timestamptz                         -- the object's first deletion; the row stays as a tombstone for late_write_window
) WITH (fillfactor = 80);
CREATE INDEX segments_reserved ON segments (lease_until) WHERE state = 'reserved';
CREATE INDEX segments_committed ON segments (committed_at) WHERE state = 'committed';
CREATE INDEX segments_unreferenced ON segments (unreferenced_since) WHERE state = 'committed' AND unreferenced_since IS NOT NULL;
CREATE INDEX segments_doomed ON segments (doomed_at) WHERE state = 'doomed';

CREATE TABLE runs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    segment_id uuid NOT NULL,
    position bigint NOT NULL,
    length bigint NOT NULL CHECK (length > 0),
    format text NOT NULL DEFAULT 'batches' CHECK (format IN ('batches')),
    min_timestamp_ms bigint NOT NULL,
    max_timestamp_ms bigint NOT NULL,
    running_max_timestamp_ms bigint NOT NULL,      -- of this and all earlier runs of the partition, also of those since deleted
    PRIMARY KEY (topic_id, partition, base_offset)
);
CREATE INDEX runs_by_segment ON runs (segment_id);
CREATE INDEX runs_by_time ON runs (topic_id, partition, running_max_timestamp_ms, base_offset);

CREATE TABLE holds (
    segment_id uuid NOT NULL,
    job_id uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (segment_id, job_id)
);
CREATE INDEX holds_by_job ON holds (job_id);
CREATE INDEX holds_by_lease ON holds (lease_until);

CREATE TABLE producer_state (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    sequences bigint[] NOT NULL,                   -- of the last five accepted batches, oldest first: base sequence * 2^31 + last sequence
    base_offsets bigint[] NOT NULL,                -- where they went
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

CREATE TABLE agents (
    node_id integer PRIMARY KEY,                   -- never reused for another address
    incarnation bigint NOT NULL,                   -- raised by every join at this address; fences the one before
    zone text NOT NULL,
    kafka_host text NOT NULL,
    kafka_port integer NOT NULL,
    peer_host text NOT NULL,
    peer_port integer NOT NULL,
    http_url text NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    UNIQUE (zone, kafka_host, kafka_port, peer_host, peer_port, http_url)
) WITH (fillfactor = 50);

CREATE TABLE jobs (
    name text PRIMARY KEY,
    holder uuid,                                   -- who runs it now, until lease_until
    lease_until timestamptz,
    last_started_at timestamptz,
    last_success_at timestamptz,
    last_error text
);

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
-- unknown partition. `sequencer/outcomes.py` is its other end.
CREATE FUNCTION commit_segments(
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
               array_agg(-batch::bigint ORDER BY batch) AS base_offsets
        FROM batch WHERE chain > 0 GROUP BY chain
    ), chain AS MATERIALIZED (
        SELECT given.*, members.base_sequences, members.sequences, members.base_offsets,
               row_number() OVER (PARTITION BY given.part, given.producer_id ORDER BY given.chain) AS turn
        FROM unnest(chain_parts, chain_producers, chain_epochs)
             WITH ORDINALITY AS given (part, producer_id, producer_epoch, chain)
        JOIN members ON members.chain = given.chain
        JOIN part ON part.part = given.part
    ), fold AS (
        -- A producer's chains in turn, each judged against the state that its predecessors left; turn 0 is the stored state. Within a chain
        -- only one batch can be the next expected: from it on (accepted_from) all follow, those before it are duplicates or
        -- rejected. (Sequences would have to go once around within a chain for it to be otherwise: 2^31 records.) A base offset that is not known yet stands in the state as minus the batch's number.
        SELECT c.part, c.producer_id, 0::bigint AS turn, NULL::bigint AS chain,
               NULL::integer AS accepted_from, NULL::integer AS rejection,
               NULL::bigint[] AS seen_sequences, NULL::bigint[] AS seen_offsets,
               stored.producer_epoch, stored.sequences, stored.base_offsets
        FROM chain AS c JOIN part ON part.part = c.part
        LEFT JOIN LATERAL (
            SELECT s.producer_epoch, s.sequences, s.base_offsets FROM producer_state AS s
            WHERE s.topic_id = part.topic_id AND s.partition = part.partition AND s.producer_id = c.producer_id OFFSET 0
        ) AS stored ON true
        WHERE c.turn = 1
        UNION ALL
        SELECT c.part, c.producer_id, c.turn, c.chain, decided.accepted_from,
               CASE WHEN f.producer_epoch IS NULL THEN 4 WHEN c.producer_epoch < f.producer_epoch THEN 3 ELSE 2 END,
               same.sequences, same.base_offsets,
               CASE WHEN decided.accepted_from IS NULL THEN f.producer_epoch ELSE c.producer_epoch END,
               reached.sequences[greatest(cardinality(reached.sequences) - 4, 1):],
               reached.base_offsets[greatest(cardinality(reached.base_offsets) - 4, 1):]
        FROM fold AS f JOIN chain AS c ON c.part = f.part AND c.producer_id = f.producer_id AND c.turn = f.turn + 1
        CROSS JOIN LATERAL (
            SELECT CASE WHEN c.producer_epoch = f.producer_epoch THEN f.sequences END AS sequences,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.base_offsets END AS base_offsets) AS same
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN f.producer_epoch IS NULL OR c.producer_epoch > f.producer_epoch THEN array_position(c.base_sequences, 0)
                WHEN c.producer_epoch = f.producer_epoch THEN array_position(
                    c.base_sequences, ((f.sequences[cardinality(f.sequences)] + 1) & 2147483647)::integer)
                END AS accepted_from) AS decided
        CROSS JOIN LATERAL (
            SELECT CASE WHEN decided.accepted_from IS NULL THEN f.sequences
                        ELSE same.sequences || c.sequences[decided.accepted_from:] END AS sequences,
                   CASE WHEN decided.accepted_from IS NULL THEN f.base_offsets
                        ELSE same.base_offsets || c.base_offsets[decided.accepted_from:] END AS base_offsets) AS reached
    ), verdict AS MATERIALIZED (
        SELECT batch.*, part.high_watermark, part.log_start_offset, duplicate.base_offset AS first_offset,
               CASE WHEN part.part IS NULL THEN 5
                    WHEN batch.chain = 0 OR batch.member >= fold.accepted_from THEN 0
                    WHEN duplicate.base_offset IS NOT NULL THEN 1
                    ELSE fold.rejection END AS kind
        FROM batch LEFT JOIN part ON part.part = batch.part LEFT JOIN fold ON fold.chain = batch.chain
        CROSS JOIN LATERAL (
            SELECT fold.seen_offsets[array_position(fold.seen_sequences, batch.sequences)] AS base_offset) AS duplicate
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
        INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets)
        SELECT part.topic_id, part.partition, latest.producer_id, latest.producer_epoch, latest.sequences, ARRAY(
            SELECT CASE WHEN base_offset < 0 THEN (SELECT of_batch FROM offsets)[-base_offset::integer] ELSE base_offset END
            FROM unnest(latest.base_offsets) WITH ORDINALITY AS known (base_offset, place) ORDER BY place)
        FROM (SELECT DISTINCT ON (part, producer_id) * FROM fold ORDER BY part, producer_id, turn DESC) AS latest
        JOIN part ON part.part = latest.part
        WHERE latest.base_offsets[cardinality(latest.base_offsets)] < 0
        ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, sequences = excluded.sequences, base_offsets = excluded.base_offsets,
            updated_at = excluded.updated_at
    ), decided AS MATERIALIZED (
        SELECT segment, array_agg(kind + 8 * CASE kind
            WHEN 0 THEN base_offset
            WHEN 1 THEN CASE WHEN first_offset < 0 THEN (SELECT of_batch FROM offsets)[-first_offset::integer] ELSE first_offset END
            WHEN 4 THEN log_start_offset
            ELSE 0 END ORDER BY batch) AS outcome
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
