-- add_acls adds those ACLs that are not there, under one version. It returns false, and adds none, if there
-- would be more than `most`.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | keys, types, patterns, names, principals, hosts, operations, permissions | ACL | its columns, each once |
-- | most | | how many ACLs the cluster may have |
CREATE FUNCTION add_acls(
    keys bytea[], types integer[], patterns integer[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], most integer)
RETURNS boolean
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
        RETURN true;
    ELSIF present + missing > most THEN
        RETURN false;
    END IF;
    UPDATE acl_changes AS c SET version = c.version + 1, acls = present + missing
    RETURNING c.version INTO number;
    INSERT INTO acls AS a (acl_key, resource_type, pattern_type, name, principal, host, operation, permission,
        version)
    SELECT given.*, number
    FROM unnest(keys, types, patterns, names, principals, hosts, operations, permissions) AS given
    ON CONFLICT (acl_key) DO UPDATE SET version = excluded.version, is_removed = false WHERE a.is_removed;
    RETURN true;
END
$function$;
