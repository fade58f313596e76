-- Groups: claimed, written and deleted by their coordinators, listed for all. The functions are in
-- `functions/`.

-- name: claim
SELECT coordinator_epoch, kind, generation, state, protocol_type, document, member_ids, member_epochs,
    member_documents,
    (SELECT config FROM group_configs WHERE group_id = %(group_id)s::text) AS config
FROM claim_group(%(group_id)s::text, %(node_id)s::integer, %(create)s::boolean)

-- name: has_room
-- Whether a tenant may have one more group. Counts no further than the limit.
SELECT (SELECT count(*) FROM (
        SELECT FROM groups WHERE group_id >= %(prefix)s::text AND group_id < %(behind)s::text
        LIMIT may.have) AS found) < may.have
    OR EXISTS (SELECT FROM groups WHERE group_id = %(group_id)s::text) AS has_room
FROM (SELECT coalesce(
    (SELECT (limits ->> 'groups')::bigint FROM tenants WHERE name = %(tenant)s::text AND deleted_at IS NULL),
    %(most_of_tenant)s::integer) AS have) AS may

-- name: write
SELECT write_group(
    %(group_id)s::text, %(coordinator_epoch)s::bigint, %(kind)s::text, %(generation)s::integer,
    %(state)s::text,
    %(protocol_type)s::text, %(document)s::json, %(is_empty)s::boolean, %(removed_ids)s::text[],
    %(member_ids)s::text[], %(member_epochs)s::integer[], %(member_documents)s::text[]) AS held

-- name: still_held
SELECT asked.group_id, configs.config
FROM unnest(%(group_ids)s::text[], %(coordinator_epochs)s::bigint[]) AS asked (group_id, coordinator_epoch)
CROSS JOIN LATERAL (
    SELECT 1 FROM groups AS g
    WHERE g.group_id = asked.group_id AND g.coordinator_epoch = asked.coordinator_epoch OFFSET 0) AS held
LEFT JOIN group_configs AS configs ON configs.group_id = asked.group_id

-- name: delete
SELECT delete_group(%(group_id)s::text, %(coordinator_epoch)s::bigint) AS outcome

-- name: list
-- A page in id order. A group that its coordinator has not written yet is a classic one without members. An
-- empty filter matches all.
SELECT group_id, coalesce(kind, 'classic') AS kind, protocol_type, state, coordinator FROM groups
WHERE group_id > %(after)s::text
  AND (cardinality(%(states)s::text[]) = 0 OR state = ANY (%(states)s::text[]))
  AND (empty_since IS NULL OR NOT %(with_members)s::boolean)
  AND (cardinality(%(kinds)s::text[]) = 0 OR coalesce(kind, 'classic') = ANY (%(kinds)s::text[]))
ORDER BY group_id LIMIT %(cap)s::integer
