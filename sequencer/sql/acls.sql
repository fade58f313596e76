-- Access control lists (security/acls.py).

-- name: acl_changes
-- The newest version, and a page of the ACLs that changed after a place in the order of versions. One
-- statement reads both, so no change up to that version is missing behind the last page.
SELECT c.version AS newest, c.forgotten, a.acl_key, a.resource_type, a.pattern_type, a.name, a.principal,
    a.host, a.operation, a.permission, a.version, a.is_removed
FROM acl_changes AS c LEFT JOIN (
    SELECT * FROM acls WHERE (version, acl_key) > (%(version)s::bigint, %(acl_key)s::bytea)
    ORDER BY version, acl_key LIMIT %(cap)s::integer) AS a ON true
ORDER BY a.version, a.acl_key

-- name: add_acls
SELECT add_acls(%(keys)s::bytea[], %(types)s::integer[], %(patterns)s::integer[], %(names)s::text[],
    %(principals)s::text[], %(hosts)s::text[], %(operations)s::integer[], %(permissions)s::integer[],
    %(of_tenants)s::text[], %(most)s::integer, %(most_of_tenant)s::integer) AS verdict

-- name: matching_acls
-- A page in key order. All pages together show what was there the whole time.
SELECT filter_number, (found).acl_key, (found).resource_type, (found).pattern_type, (found).name,
    (found).principal, (found).host, (found).operation, (found).permission
FROM matching_acls(%(types)s::integer[], %(patterns)s::integer[], %(match)s::boolean[], %(names)s::text[],
    %(principals)s::text[], %(hosts)s::text[], %(operations)s::integer[], %(permissions)s::integer[],
    %(within)s::text[])
WHERE (found).acl_key > %(after)s::bytea
ORDER BY (found).acl_key LIMIT %(cap)s::integer

-- name: remove_acls
SELECT filter_number, (found).resource_type, (found).pattern_type, (found).name, (found).principal,
    (found).host, (found).operation, (found).permission
FROM remove_acls(%(types)s::integer[], %(patterns)s::integer[], %(match)s::boolean[], %(names)s::text[],
    %(principals)s::text[], %(hosts)s::text[], %(operations)s::integer[], %(permissions)s::integer[],
    %(within)s::text[], %(most)s::integer)
ORDER BY filter_number, (found).acl_key
