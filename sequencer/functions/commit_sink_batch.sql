-- commit_sink_batch commits the transactions of a sink's batch as one, once
-- (docs/design/transactions.md#several-as-one).
--
-- It locks the sink's row first, so that a repeat and a rival wait here. Then it locks the transactions, and
-- judges all of them before it ends any: a batch is committed as a whole or not at all. A run that commits
-- takes the sink's name, and the run that had it is fenced.
--
-- | parameter | meaning |
-- |---|---|
-- | of_sink | the sink's name |
-- | of_run, of_prefix | who commits, and how its transactional ids begin |
-- | of_query, of_batch | a batch of a streaming query, or NULL: the run commits once |
-- | all others | as of end_transactions, an element for each transaction |
--
-- Returns a row for each transaction, or one row without a place:
-- | column | meaning |
-- |---|---|
-- | outcome | 0 committed now; 1 committed before; 2 another run has the name; 3 a transaction is not open |
-- | lost | with outcome 3: the numbers, from 1, of transactions that are not open any more |
-- | left_prefix | with outcome 0: how the ids of the run begin that had the name until now; '' if none |
-- | all others | as of end_transactions |
CREATE FUNCTION commit_sink_batch(
    of_sink text, of_run text, of_prefix text, of_query text, of_batch bigint,
    ids text[], of_producers bigint[], of_epochs integer[],
    marker_segments uuid[], marker_keys text[], markers_bytes integer[])
RETURNS TABLE (outcome integer, lost integer[], left_prefix text, place integer, verdict integer,
    producer_id bigint, producer_epoch integer, topic_ids uuid[], partition_numbers integer[],
    marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_hashagg = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_run text;
    own_prefix text;
    older_runs text[];
    was_committed boolean;
    found_outcome integer := 0;
    not_open integer[];
BEGIN
    -- Locks the row, also if another request makes it now, or a job has just removed it.
    INSERT INTO sinks AS s (sink_name) VALUES (of_sink)
    ON CONFLICT (sink_name) DO UPDATE SET changed_at = clock_timestamp()
    RETURNING s.run_id, s.id_prefix, s.past_runs INTO own_run, own_prefix, older_runs;

    -- A run without a query commits once. It is in the row only if it has.
    SELECT of_query IS NULL AND (own_run = of_run OR of_run = ANY (older_runs))
        OR EXISTS (SELECT FROM sink_batches AS b
            WHERE b.sink_name = of_sink AND b.query_id = of_query AND b.last_batch >= of_batch)
    INTO was_committed;
    IF was_committed THEN
        found_outcome := 1;
    ELSIF of_run = ANY (older_runs) THEN
        found_outcome := 2;
    ELSE
        PERFORM 1 FROM transactions AS t WHERE t.transactional_id = ANY (ids)
        ORDER BY t.producer_id FOR NO KEY UPDATE;

        SELECT array_agg(given.place::integer ORDER BY given.place) INTO not_open
        FROM unnest(ids, of_producers, of_epochs) WITH ORDINALITY AS given (id, producer, epoch, place)
        LEFT JOIN LATERAL (SELECT t.producer_id, t.producer_epoch FROM transactions AS t
            WHERE t.transactional_id = given.id OFFSET 0) AS known ON true
        WHERE (known.producer_id = given.producer AND known.producer_epoch = given.epoch
            AND (EXISTS (SELECT FROM transaction_partitions AS p
                    WHERE p.producer_id = given.producer OFFSET 0)
                OR EXISTS (SELECT FROM transaction_groups AS g
                    WHERE g.producer_id = given.producer OFFSET 0))) IS NOT TRUE;
        IF not_open IS NOT NULL THEN
            found_outcome := 3;
        END IF;
    END IF;
    IF found_outcome <> 0 THEN
        RETURN QUERY SELECT found_outcome, coalesce(not_open, '{}'), '', NULL::integer, NULL::integer,
            NULL::bigint, NULL::integer, NULL::uuid[], NULL::integer[], NULL::bigint[], NULL::bigint[],
            NULL::bigint[];
        RETURN;
    END IF;

    IF own_run <> of_run THEN
        UPDATE sinks AS s SET run_id = of_run, id_prefix = of_prefix,
            past_runs = (array_remove(ARRAY[own_run], '') || older_runs)[1:20]
        WHERE s.sink_name = of_sink;
    END IF;
    IF of_query IS NOT NULL THEN
        INSERT INTO sink_batches AS b (sink_name, query_id, last_batch) VALUES (of_sink, of_query, of_batch)
        ON CONFLICT (sink_name, query_id) DO UPDATE
        SET last_batch = excluded.last_batch, changed_at = excluded.changed_at;
    END IF;
    RETURN QUERY SELECT 0, '{}'::integer[],
        CASE WHEN own_run <> of_run AND own_prefix <> of_prefix THEN own_prefix ELSE '' END, ended.*
    FROM (VALUES (1)) AS one (row) LEFT JOIN LATERAL end_transactions(
        ids, of_producers, of_epochs, array_fill(true, ARRAY[cardinality(ids)]),
        array_fill('client2'::text, ARRAY[cardinality(ids)]), marker_segments, marker_keys,
        markers_bytes) AS ended ON true;
END
$function$;
