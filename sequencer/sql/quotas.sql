-- Client quotas and what agents use of them (security/quotas.py).

-- name: alter
SELECT alter_client_quotas(%(changes)s::jsonb, %(most)s::integer, %(most_of_tenant)s::integer) AS verdict

-- name: all
-- A page in the order of entities.
SELECT entity, quotas FROM client_quotas
WHERE (%(after)s::jsonb IS NULL OR entity > %(after)s::jsonb) AND quotas <> '{}'
ORDER BY entity LIMIT %(cap)s::integer

-- name: changes
-- The newest version, and a page of the entities that changed after a place in the order of versions. One
-- statement reads both, so no change up to that version is missing behind the last page.
SELECT c.version AS newest, c.forgotten, q.entity, q.quotas, q.version
FROM quota_changes AS c LEFT JOIN (
    SELECT * FROM client_quotas
    WHERE (version, entity) > (%(version)s::bigint, coalesce(%(entity)s::jsonb, 'null'::jsonb))
    ORDER BY version, entity LIMIT %(cap)s::integer) AS q ON true
ORDER BY q.version, q.entity

-- name: report
-- Writes what this agent wants of each quota, and returns what others want. Only this agent writes its rows.
-- It also removes some rows of agents that are gone. A standby that stalls must not stop it.
WITH given AS (
    SELECT * FROM unnest(%(keys)s::bytea[], %(wanted)s::integer[]) AS given (quota_key, wanted)
), local AS (
    SELECT set_config('synchronous_commit', 'local', true)
), old AS (
    DELETE FROM quota_use WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM quota_use
        WHERE expires_at < statement_timestamp() - interval '1 minute' AND node_id <> %(node_id)s::integer
        ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED))
), written AS (
    INSERT INTO quota_use AS kept (quota_key, node_id, wanted, expires_at)
    SELECT given.quota_key, %(node_id)s::integer, given.wanted / 1e6,
        clock_timestamp() + make_interval(secs => %(kept_s)s::double precision)
    FROM given, local ORDER BY given.quota_key
    ON CONFLICT (quota_key, node_id) DO UPDATE
    SET wanted = excluded.wanted, expires_at = excluded.expires_at
)
SELECT u.quota_key, array_agg(u.wanted) AS wanted FROM quota_use AS u
WHERE u.quota_key = ANY (%(keys)s::bytea[]) AND u.node_id <> %(node_id)s::integer
    AND u.expires_at > clock_timestamp()
GROUP BY u.quota_key
