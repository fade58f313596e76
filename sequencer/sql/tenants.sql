-- Tenants, their limits and their bill (tenants/tenants.py).

-- name: create_tenant
-- A tenant of this name that was deleted begins again. No row: there is one.
WITH counted AS (
    UPDATE tenant_changes SET changes = changes + 1
)
INSERT INTO tenants AS t (name, admins, limits)
VALUES (%(name)s::text, %(admins)s::text[], %(limits)s::jsonb)
ON CONFLICT (name) DO UPDATE SET created_at = clock_timestamp(), admins = EXCLUDED.admins,
    limits = EXCLUDED.limits, deleted_at = NULL WHERE t.deleted_at IS NOT NULL
RETURNING name, created_at, admins, limits

-- name: change_tenant
WITH counted AS (
    UPDATE tenant_changes SET changes = changes + 1
)
UPDATE tenants SET admins = coalesce(%(admins)s::text[], admins), limits = coalesce(%(limits)s::jsonb, limits)
WHERE name = %(name)s::text AND deleted_at IS NULL
RETURNING name, created_at, admins, limits

-- name: count_change
UPDATE tenant_changes SET changes = changes + 1

-- name: lock_tenant
SELECT limits FROM tenants WHERE name = %(name)s::text AND deleted_at IS NULL FOR NO KEY UPDATE

-- name: mark_tenant_deleted
UPDATE tenants SET deleted_at = clock_timestamp() WHERE name = %(name)s::text AND deleted_at IS NULL

-- name: tenant_changes
SELECT changes FROM tenant_changes

-- name: list_tenants
-- A page by name.
SELECT name, created_at, admins, limits FROM tenants
WHERE deleted_at IS NULL AND name > %(after)s::text ORDER BY name LIMIT %(cap)s::integer

-- name: limits_of_tenant
SELECT limits FROM tenants WHERE name = %(name)s::text AND deleted_at IS NULL

-- name: numbers_of_tenant
-- The separator is ~, so by their bytes names of the tenant lie between <tenant>~ and <tenant>DEL. Of the
-- index, only that range is read.
SELECT count(*) AS topics, coalesce(sum(partition_count), 0)::bigint AS partitions FROM topics
WHERE deleted_at IS NULL AND strpos(name, '~') > 0
    AND name >= %(prefix)s::text COLLATE "C" AND name < %(behind)s::text COLLATE "C"

-- name: holds_names
-- What there is with such a name: what is left of a tenant, or what was named so before there was one. Group
-- ids and transactional ids are compared as bytes, so a range of the index has those of a tenant.
SELECT (SELECT count(*) FROM topics
        WHERE deleted_at IS NULL AND strpos(name, '~') > 0
            AND name >= %(prefix)s::text COLLATE "C" AND name < %(behind)s::text COLLATE "C") AS topics,
    (SELECT count(*) FROM groups
        WHERE group_id >= %(prefix)s::text COLLATE "C" AND group_id < %(behind)s::text COLLATE "C") AS groups,
    (SELECT count(*) FROM transactions
        WHERE transactional_id >= %(prefix)s::text COLLATE "C"
            AND transactional_id < %(behind)s::text COLLATE "C") AS transactions,
    (SELECT count(DISTINCT user_name) FROM user_credentials
        WHERE salt IS NOT NULL AND user_name >= %(prefix)s::text COLLATE "C"
            AND user_name < %(behind)s::text COLLATE "C") AS users,
    (SELECT count(*) FROM acls WHERE NOT is_removed
        AND (starts_with(name, %(prefix)s::text) OR starts_with(principal, 'User:' || %(prefix)s::text)))
        AS acls,
    (SELECT count(*) FROM client_quotas
        WHERE quotas <> '{}'
            AND starts_with(coalesce(entity ->> 'user', entity ->> 'client-id'), %(prefix)s::text)) AS quotas,
    (SELECT count(*) FROM group_configs
        WHERE config <> '{}' AND group_id >= %(prefix)s::text COLLATE "C"
            AND group_id < %(behind)s::text COLLATE "C") AS group_configs

-- name: add_usage
-- Adds a report of an agent's process to the bill, once. Rows are locked in primary-key order.
WITH first AS (
    INSERT INTO tenant_reports AS r (reporter, number, reported_at)
    VALUES (%(reporter)s::uuid, %(number)s::bigint, clock_timestamp())
    ON CONFLICT (reporter) DO UPDATE SET number = EXCLUDED.number, reported_at = EXCLUDED.reported_at
        WHERE r.number < EXCLUDED.number
    RETURNING 1
)
INSERT INTO tenant_usage AS u (day, tenant, bytes_in, bytes_out, requests)
SELECT used.day, used.tenant, used.bytes_in, used.bytes_out, used.requests
FROM unnest(%(days)s::date[], %(tenants)s::text[], %(bytes_in)s::bigint[], %(bytes_out)s::bigint[],
    %(requests)s::bigint[]) AS used (day, tenant, bytes_in, bytes_out, requests)
WHERE EXISTS (SELECT FROM first)
ORDER BY used.day, used.tenant
ON CONFLICT (day, tenant) DO UPDATE SET bytes_in = u.bytes_in + EXCLUDED.bytes_in,
    bytes_out = u.bytes_out + EXCLUDED.bytes_out, requests = u.requests + EXCLUDED.requests

-- name: tenants_to_measure
-- Takes those that were not measured for a while: of several agents, one measures each. Tenants that others
-- take now are skipped.
UPDATE tenants SET measured_at = clock_timestamp()
WHERE name IN (
    SELECT name FROM tenants
    WHERE deleted_at IS NULL AND measured_at < clock_timestamp() - make_interval(secs => %(age_s)s)
    ORDER BY name LIMIT %(cap)s::integer FOR NO KEY UPDATE SKIP LOCKED)
RETURNING name

-- name: note_stored
-- Bytes in the log and in the history of the tenants' topics, at this moment.
INSERT INTO tenant_usage AS u (day, tenant, bytes_stored)
SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date, asked.name,
    coalesce((SELECT sum(p.size_bytes) FROM topics AS t JOIN partitions AS p USING (topic_id)
        WHERE t.deleted_at IS NULL AND strpos(t.name, '~') > 0 AND t.name >= (asked.name || '~') COLLATE "C"
            AND t.name < (asked.name || chr(127)) COLLATE "C"), 0)
    + coalesce((SELECT sum(f.size_bytes) FROM topics AS t JOIN history_files AS f USING (topic_id)
        WHERE t.deleted_at IS NULL AND strpos(t.name, '~') > 0 AND t.name >= (asked.name || '~') COLLATE "C"
            AND t.name < (asked.name || chr(127)) COLLATE "C"), 0)
FROM unnest(%(tenants)s::text[]) AS asked (name)
ORDER BY asked.name
ON CONFLICT (day, tenant) DO UPDATE SET bytes_stored = EXCLUDED.bytes_stored

-- name: usage
SELECT day, tenant, bytes_in, bytes_out, requests, bytes_stored FROM tenant_usage
WHERE day > (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::integer
    AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
ORDER BY day DESC, tenant LIMIT %(cap)s::integer

-- name: forget_usage
WITH forgotten AS (
    DELETE FROM tenant_reports WHERE reported_at < clock_timestamp() - interval '1 day'
)
DELETE FROM tenant_usage WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date - %(days)s::integer
