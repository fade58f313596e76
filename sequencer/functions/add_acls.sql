-- add_acls adds those ACLs that are not there, under one version, or none. It returns 0 if they are there
-- now; 1 if there would be more than `most`; 2 if a tenant would have more than its limit.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | keys, types, patterns, names, principals, hosts, operations, permissions | ACL | its columns, each once |
-- | of_tenants | ACL | the tenant that its name belongs to, or nothing |
-- | most | | how many ACLs the cluster may have |
-- | most_of_tenant | | the limit of a tenant for which none is set |
CREATE FUNCTION add_acls(
    keys bytea[], types integer[], patterns integer[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], of_tenants text[], most integer, most_of_tenant integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    present integer;
    missing integer;
    number bigint;
BEGIN
    SELECT c.acls INTO present FROM acl_changes AS c FOR NO KEY UPDATE;
    SELECT count(*) INTO missing FROM unnest(keys) AS given (acl_key)
    WHERE NOT EXISTS (SELECT FROM acls AS a WHERE a.acl_key = given.acl_key AND NOT a.is_removed);
    IF missing = 0 THEN
        RETURN 0;
    ELSIF present + missing > most THEN
        RETURN 1;
    ELSIF EXISTS (
        SELECT FROM (
            SELECT given.tenant, count(*) AS more FROM unnest(keys, of_tenants) AS given (acl_key, tenant)
            WHERE given.tenant <> ''
                AND NOT EXISTS (SELECT FROM acls AS a WHERE a.acl_key = given.acl_key AND NOT a.is_removed)
            GROUP BY given.tenant) AS asked
        LEFT JOIN tenants AS t ON t.name = asked.tenant AND t.deleted_at IS NULL
        WHERE asked.more > coalesce((t.limits ->> 'acls')::bigint, most_of_tenant) - (
            SELECT count(*) FROM acls AS a
            WHERE NOT a.is_removed AND left(a.name, 64) >= (asked.tenant || '~') COLLATE "C"
                AND left(a.name, 64) < (asked.tenant || chr(127)) COLLATE "C")) THEN
        RETURN 2;
    END IF;
    UPDATE acl_changes AS c SET version = c.version + 1, acls = present + missing
    RETURNING c.version INTO number;
    INSERT INTO acls AS a (acl_key, resource_type, pattern_type, name, principal, host, operation, permission,
        version)
    SELECT given.*, number
    FROM unnest(keys, types, patterns, names, principals, hosts, operations, permissions) AS given
    ON CONFLICT (acl_key) DO UPDATE SET version = excluded.version, is_removed = false WHERE a.is_removed;
    RETURN 0;
END
$function$;
