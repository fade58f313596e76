-- remove_acls removes the ACLs that some filters select, under one version, and returns them per filter. An
-- ACL that several filters select is returned for each. It removes none, and returns one row without an ACL,
-- if it would return more than `most` rows.
--
-- The parameters are those of matching_acls. The row of acl_changes is locked first, so no ACL is added or
-- removed meanwhile.
CREATE FUNCTION remove_acls(
    types integer[], patterns integer[], match boolean[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], within text[], most integer)
RETURNS TABLE (filter_number bigint, found acls)
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    numbers bigint[];
    selected acls[];
    gone integer;
    number bigint;
BEGIN
    PERFORM FROM acl_changes FOR NO KEY UPDATE;
    SELECT array_agg(m.filter_number), array_agg(m.found) INTO numbers, selected
    FROM (SELECT * FROM matching_acls(types, patterns, match, names, principals, hosts, operations,
              permissions, within) LIMIT most + 1) AS m;
    IF numbers IS NULL THEN
        RETURN;
    ELSIF cardinality(numbers) > most THEN
        RETURN QUERY SELECT NULL::bigint, NULL::acls;
        RETURN;
    END IF;
    UPDATE acl_changes AS c SET version = c.version + 1, forgotten = greatest(c.forgotten, c.version - 999)
    RETURNING c.version INTO number;
    UPDATE acls AS a SET version = number, is_removed = true
    WHERE a.acl_key IN (SELECT (one).acl_key FROM unnest(selected) AS one);
    GET DIAGNOSTICS gone = ROW_COUNT;
    UPDATE acl_changes AS c SET acls = c.acls - gone;
    DELETE FROM acls AS a WHERE a.is_removed AND a.version <= number - 1000;
    RETURN QUERY SELECT unnest(numbers), unnest(selected);
END
$function$;
