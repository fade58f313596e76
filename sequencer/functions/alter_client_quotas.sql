-- alter_client_quotas sets and removes quotas of entities, all under one version. It locks the row of
-- quota_changes first, so changes come one after the other and their versions are in commit order. It returns
-- 0. If there could be more than `most` entities, or more of a tenant than its limit, it changes nothing and
-- returns 1 or 2. Removing what is not there leaves no row.
--
-- | parameter | meaning |
-- |---|---|
-- | changes | an array of {"entity": …, "quotas": …, "tenant": …}, no entity twice; a quota that is null is
--   removed |
-- | most_of_tenant | the limit of a tenant for which none is set |
CREATE FUNCTION alter_client_quotas(changes jsonb, most integer, most_of_tenant integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    number bigint;
BEGIN
    SELECT c.version + 1 INTO number FROM quota_changes AS c FOR NO KEY UPDATE;
    IF (SELECT count(*) FROM client_quotas AS kept WHERE kept.quotas <> '{}')
        + (SELECT count(*) FROM jsonb_array_elements(changes) AS given
           WHERE jsonb_strip_nulls(given -> 'quotas') <> '{}'
             AND NOT EXISTS (SELECT FROM client_quotas AS kept
                             WHERE kept.entity = given -> 'entity' AND kept.quotas <> '{}')) > most THEN
        RETURN 1;
    ELSIF EXISTS (
        SELECT FROM (
            SELECT given ->> 'tenant' AS tenant, count(*) AS more FROM jsonb_array_elements(changes) AS given
            WHERE given ->> 'tenant' <> '' AND jsonb_strip_nulls(given -> 'quotas') <> '{}'
                AND NOT EXISTS (SELECT FROM client_quotas AS kept
                                WHERE kept.entity = given -> 'entity' AND kept.quotas <> '{}')
            GROUP BY 1) AS asked
        LEFT JOIN tenants AS t ON t.name = asked.tenant AND t.deleted_at IS NULL
        WHERE asked.more > coalesce((t.limits ->> 'quotas')::bigint, most_of_tenant) - (
            SELECT count(*) FROM client_quotas AS kept
            WHERE kept.quotas <> '{}' AND starts_with(
                coalesce(kept.entity ->> 'user', kept.entity ->> 'client-id'), asked.tenant || '~'))) THEN
        RETURN 2;
    END IF;
    UPDATE quota_changes SET version = number, forgotten = greatest(forgotten, number - 1000);
    INSERT INTO client_quotas AS kept (entity, quotas, version)
    SELECT given -> 'entity', jsonb_strip_nulls(coalesce(old.quotas, '{}') || (given -> 'quotas')), number
    FROM jsonb_array_elements(changes) AS given
    LEFT JOIN client_quotas AS old ON old.entity = given -> 'entity'
    WHERE old.entity IS NOT NULL OR jsonb_strip_nulls(given -> 'quotas') <> '{}'
    ORDER BY given -> 'entity'
    ON CONFLICT (entity) DO UPDATE SET quotas = excluded.quotas, version = excluded.version;
    DELETE FROM client_quotas AS kept WHERE kept.version <= number - 1000 AND kept.quotas = '{}';
    RETURN 0;
END
$function$;
