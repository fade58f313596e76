-- bury_segments moves the rows of segments whose objects were deleted: the key becomes a tombstone, and the
-- outcome is kept if an agent may still ask for it. It returns how many it moved: none without a partition
-- for each table.
--
-- Several may do it at once: a row that another transaction holds is passed by. A partition takes rows
-- until it ends. Agents could not ask for outcomes while Postgres was away, so all outcomes are kept while
-- dooming pauses.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | segment_ids | segment | those whose objects were deleted |
-- | outcome_retention_s | | how long after its commit an agent may ask for an outcome |
CREATE FUNCTION bury_segments(segment_ids uuid[], outcome_retention_s double precision) RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
WITH dead AS MATERIALIZED (
    SELECT segment_id, object_key, outcome, outcome IS NOT NULL AND (
        committed_at > clock_timestamp() - make_interval(secs => outcome_retention_s)
        OR EXISTS (SELECT FROM dooming WHERE paused_until > clock_timestamp())) AS is_kept
    FROM segments WHERE segment_id = ANY(segment_ids) AND state = 'doomed'
        ORDER BY segment_id FOR UPDATE SKIP LOCKED
), taking AS MATERIALIZED (
    SELECT of_table, number, ends_at FROM time_partitions
    WHERE NOT is_closed AND statement_timestamp() < ends_at
    ORDER BY of_table, number FOR UPDATE
), place AS MATERIALIZED (
    SELECT (array_agg(number ORDER BY ends_at) FILTER (WHERE of_table = 'tombstones'))[1] AS grave,
        (array_agg(number ORDER BY ends_at) FILTER (WHERE of_table = 'outcomes'))[1] AS shelf
    FROM taking HAVING count(DISTINCT of_table) = 2
), counted AS (
    UPDATE time_partitions AS p
        SET row_count = p.row_count + (SELECT count(*) FROM dead WHERE p.of_table = 'tombstones'
        OR dead.is_kept)
    FROM place WHERE (p.of_table, p.number) IN (('tombstones', place.grave), ('outcomes', place.shelf))
), kept AS (
    INSERT INTO outcomes (number, segment_id, object_key, outcome)
    SELECT place.shelf, dead.segment_id, dead.object_key, dead.outcome FROM dead CROSS JOIN place
        WHERE dead.is_kept
), buried AS (
    INSERT INTO tombstones (number, segment_id, object_key)
    SELECT place.grave, dead.segment_id, dead.object_key FROM dead CROSS JOIN place
), gone AS (
    DELETE FROM segments AS s USING dead CROSS JOIN place WHERE s.segment_id = dead.segment_id
    RETURNING 1
)
SELECT count(*) FROM gone
$function$;
