-- alter_client_quotas sets and removes quotas of entities, all under one version. It locks the row of
-- quota_changes first, so changes come one after the other and their versions are in commit order. It returns
-- false, and changes nothing, if there could be more than `most` entities.
--
-- | parameter | meaning |
-- |---|---|
-- | changes | an array of {"entity": …, "quotas": …}, no entity twice; a quota that is null is removed |
CREATE FUNCTION alter_client_quotas(changes jsonb, most integer) RETURNS boolean
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
        RETURN false;
    END IF;
    UPDATE quota_changes SET version = number, forgotten = greatest(forgotten, number - 1000);
    INSERT INTO client_quotas AS kept (entity, quotas, version)
    SELECT given -> 'entity', jsonb_strip_nulls(coalesce(old.quotas, '{}') || (given -> 'quotas')), number
    FROM jsonb_array_elements(changes) AS given
    LEFT JOIN client_quotas AS old ON old.entity = given -> 'entity'
    ORDER BY given -> 'entity'
    ON CONFLICT (entity) DO UPDATE SET quotas = excluded.quotas, version = excluded.version;
    DELETE FROM client_quotas AS kept WHERE kept.version <= number - 1000 AND kept.quotas = '{}';
    RETURN true;
END
$function$;
