-- Configs that administrators set for groups. Coordinators read them with other facts about groups
-- (groups.sql).

-- name: configs_of
SELECT group_id, config FROM group_configs WHERE group_id = ANY (%(group_ids)s::text[]) AND config <> '{}'

-- name: has_room
-- Whether a tenant may set configs of this group. Rows that are empty count, because they stay. Counts no
-- further than the limit.
SELECT (SELECT count(*) FROM (
        SELECT FROM group_configs WHERE group_id >= %(prefix)s::text AND group_id < %(behind)s::text
        LIMIT may.have) AS found) < may.have
    OR EXISTS (SELECT FROM group_configs WHERE group_id = %(group_id)s::text) AS has_room
FROM (SELECT coalesce(
    (SELECT (limits ->> 'groups')::bigint FROM tenants WHERE name = %(tenant)s::text AND deleted_at IS NULL),
    %(most_of_tenant)s::integer) AS have) AS may

-- name: alter
-- Removing what is not there leaves no row.
INSERT INTO group_configs (group_id, config)
SELECT %(group_id)s::text, %(set)s::jsonb - %(remove)s::text[]
WHERE %(set)s::jsonb - %(remove)s::text[] <> '{}'
    OR EXISTS (SELECT FROM group_configs WHERE group_id = %(group_id)s::text)
ON CONFLICT (group_id) DO UPDATE SET config = (group_configs.config || %(set)s::jsonb) - %(remove)s::text[]

-- name: list
-- A page in id order.
SELECT group_id FROM group_configs WHERE group_id > %(after)s::text AND config <> '{}' ORDER BY group_id
LIMIT %(cap)s::integer
