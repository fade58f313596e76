-- name: join
-- An agent that comes back to its Kafka addresses keeps its node id, whatever its other ports are: clients
-- know it by both. It is the same agent if the lease of the last one there has ended, or if only the peer
-- port differs: two agents cannot listen on the other ports at once.
WITH mine AS (
    SELECT node_id FROM agents
    WHERE kafka_host = %(kafka_host)s::text AND kafka_port = %(kafka_port)s::integer
      AND listeners = %(listeners)s::text
      AND (lease_until <= clock_timestamp()
           OR (zone, peer_host, http_url) = (%(zone)s::text, %(peer_host)s::text, %(http_url)s::text))
    ORDER BY (zone, peer_host, peer_port, http_url)
             = (%(zone)s::text, %(peer_host)s::text, %(peer_port)s::integer, %(http_url)s::text) DESC,
             lease_until DESC
    LIMIT 1 FOR NO KEY UPDATE
), back AS (
    UPDATE agents
    SET incarnation = incarnation + 1, zone = %(zone)s::text, peer_host = %(peer_host)s::text,
        peer_port = %(peer_port)s::integer,
        http_url = %(http_url)s::text, joined_at = clock_timestamp(),
        lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s::double precision)
    WHERE node_id = (SELECT node_id FROM mine)
    RETURNING *
), first AS (
    INSERT INTO agents (node_id, incarnation, zone, kafka_host, kafka_port, peer_host, peer_port, http_url,
        listeners, lease_until)
    SELECT nextval('node_ids'), 1, %(zone)s::text, %(kafka_host)s::text, %(kafka_port)s::integer,
        %(peer_host)s::text,
           %(peer_port)s::integer, %(http_url)s::text, %(listeners)s::text,
           clock_timestamp() + make_interval(secs => %(lease_s)s::double precision)
    WHERE NOT EXISTS (SELECT FROM mine)
    ON CONFLICT (zone, kafka_host, kafka_port, peer_host, peer_port, http_url, listeners) DO UPDATE
    SET incarnation = agents.incarnation + 1, joined_at = clock_timestamp(),
        lease_until = excluded.lease_until
    RETURNING *
)
SELECT node_id, incarnation, zone, kafka_host, kafka_port, peer_host, peer_port, http_url, listeners,
    (SELECT lost_because FROM ownership) AS lost_because, (SELECT secrets FROM peer_secrets) AS peer_secrets,
    (SELECT number FROM erasures) AS erasure,
    (SELECT (extract(epoch FROM made_before) * 1000)::bigint FROM erasures) AS erased_before_ms
FROM (SELECT * FROM back UNION ALL SELECT * FROM first) AS joined

-- name: renew
-- Every agent asks this often. So it learns here that the bucket is another database's
-- (sequencer/cluster/ownership.py), and the cluster's secrets: an agent with a valid lease knows every secret
-- that is older than the lease. A standby that stalls must not end leases.
-- It also learns of erasures, and says up to which of them it has dropped its pages.
UPDATE agents SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s::double precision),
    erased_to = %(erased_to)s::bigint
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE node_id = %(node_id)s::integer AND incarnation = %(incarnation)s::bigint
RETURNING node_id, (SELECT lost_because FROM ownership) AS lost_because,
    (SELECT secrets FROM peer_secrets) AS peer_secrets, (SELECT number FROM erasures) AS erasure,
    (SELECT (extract(epoch FROM made_before) * 1000)::bigint FROM erasures) AS erased_before_ms

-- name: leave
UPDATE agents SET lease_until = clock_timestamp()
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby
WHERE node_id = %(node_id)s::integer AND incarnation = %(incarnation)s::bigint

-- name: live
SELECT node_id, incarnation, zone, kafka_host, kafka_port, peer_host, peer_port, http_url, listeners
FROM agents WHERE lease_until > clock_timestamp() ORDER BY node_id

-- name: shown
-- The agents that are shown as alive, or what changed in that list since a number. One row or more; `node_id`
-- is null if nothing changed. An agent that is no longer shown has no incarnation.
SELECT s.changes, s.alive, extract(epoch FROM clock_timestamp() - s.looked_at)::float8 AS age_s,
    a.node_id, a.shown AS incarnation, a.zone, a.kafka_host, a.kafka_port, a.peer_host, a.peer_port,
    a.http_url, a.listeners
FROM agents_shown AS s
LEFT JOIN LATERAL (
    SELECT * FROM agents
    WHERE s.changes > %(since)s::bigint AND change > %(since)s::bigint
        AND (shown IS NOT NULL OR %(since)s::bigint >= 0) OFFSET 0) AS a ON true
WHERE s.only_row

-- name: show
SELECT show_agents(%(not_older_than_s)s::double precision)
FROM (SELECT set_config('synchronous_commit', 'local', true)) AS waits_for_no_standby

-- name: forget_long_gone
DELETE FROM agents WHERE node_id IN (
    SELECT node_id FROM agents
    WHERE lease_until < clock_timestamp() - make_interval(secs => %(forget_after_s)s::double precision)
    ORDER BY node_id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED)

-- name: renew_peer_secret
-- Postgres makes the secret, so that no statement contains one. The previous secret stays valid: agents take
-- the new one with their next renewal, and some may have the old one until then.
INSERT INTO peer_secrets (secrets)
VALUES (ARRAY[uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())])
ON CONFLICT (only_row) DO UPDATE
SET secrets = array_append(excluded.secrets, peer_secrets.secrets[1]), renewed_at = clock_timestamp()
RETURNING renewed_at
