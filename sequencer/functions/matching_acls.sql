-- matching_acls finds, for each of some filters, the ACLs that it selects. A null selects anything.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | types, patterns, names, principals, hosts, operations, permissions | filter | an ACL's columns |
-- | match | filter | true: names has a resource, and every pattern that applies to it is selected |
-- | within | filter | what the names of all selected ACLs begin with: a tenant's prefix,
--   or nothing; null: they are of no tenant |
CREATE FUNCTION matching_acls(
    types integer[], patterns integer[], match boolean[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], within text[])
RETURNS TABLE (filter_number bigint, found acls)
LANGUAGE sql STABLE
AS $function$
    SELECT f.number, near.a
    FROM unnest(types, patterns, match, names, principals, hosts, operations, permissions, within)
        WITH ORDINALITY AS f (resource_type, pattern_type, is_match, name, principal, host, operation,
            permission, prefix, number)
    CROSS JOIN LATERAL (
        -- Of the index, only a tenant's range is read.
        SELECT acls AS a FROM acls
        WHERE f.prefix <> '' AND NOT is_removed AND left(name, 64) >= f.prefix COLLATE "C"
            AND left(name, 64) < (left(f.prefix, -1) || chr(127)) COLLATE "C"
        UNION ALL
        SELECT acls FROM acls
        WHERE coalesce(f.prefix, '') = '' AND NOT is_removed
            AND (f.prefix = '' OR name !~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?~')) AS near
    WHERE (f.resource_type IS NULL OR (near.a).resource_type = f.resource_type)
        AND (f.pattern_type IS NULL OR (near.a).pattern_type = f.pattern_type)
        AND (f.name IS NULL OR (near.a).name = f.name
            OR f.is_match AND ((near.a).pattern_type = 3 AND (near.a).name = coalesce(f.prefix, '') || '*'
                OR (near.a).pattern_type = 4 AND starts_with(f.name, (near.a).name)))
        AND (f.principal IS NULL OR (near.a).principal = f.principal)
        AND (f.host IS NULL OR (near.a).host = f.host)
        AND (f.operation IS NULL OR (near.a).operation = f.operation)
        AND (f.permission IS NULL OR (near.a).permission = f.permission)
$function$;
