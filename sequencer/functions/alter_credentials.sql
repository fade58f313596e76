-- alter_credentials sets and deletes credentials of users. It returns the users that it refuses: nothing of
-- theirs is changed. If a tenant would have more users than its limit, it changes nothing and returns null.
-- It locks the row of `security` first, so changes come one after the other, their numbers
-- are in commit order, and each sees all that was done before.
--
-- | parameter | meaning |
-- |---|---|
-- | set_users, set_mechanisms | the credentials to set; no pair twice |
-- | salts, iteration_counts, stored_keys, server_keys | their contents |
-- | deleted_users, deleted_mechanisms | the credentials to delete; no pair twice, and none that is set |
-- | users_of_tenants, of_tenants | the users of tenants among set_users, once each, and their tenants |
-- | most_of_tenant | the limit of a tenant for which none is set |
-- | users_must_exist | true: a user of a credential to set must have one already; false: none; null: either |
CREATE FUNCTION alter_credentials(set_users text[], set_mechanisms text[], salts bytea[],
    iteration_counts integer[], stored_keys bytea[], server_keys bytea[], deleted_users text[],
    deleted_mechanisms text[], users_of_tenants text[], of_tenants text[], most_of_tenant integer,
    users_must_exist boolean) RETURNS TABLE (refused_user text)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
DECLARE
    number bigint;
    refused text[];
BEGIN
    PERFORM FROM security FOR NO KEY UPDATE;
    IF EXISTS (
        SELECT FROM (
            SELECT given.tenant, count(*) AS more
            FROM unnest(users_of_tenants, of_tenants) AS given (user_name, tenant)
            WHERE NOT EXISTS (SELECT FROM user_credentials AS kept
                WHERE kept.user_name = given.user_name AND kept.salt IS NOT NULL)
            GROUP BY given.tenant) AS asked
        LEFT JOIN tenants AS t ON t.name = asked.tenant AND t.deleted_at IS NULL
        WHERE asked.more > coalesce((t.limits ->> 'users')::bigint, most_of_tenant) - (
            SELECT count(DISTINCT kept.user_name) FROM user_credentials AS kept
            WHERE kept.salt IS NOT NULL AND kept.user_name >= (asked.tenant || '~') COLLATE "C"
                AND kept.user_name < (asked.tenant || chr(127)) COLLATE "C")) THEN
        RETURN QUERY SELECT NULL::text;
        RETURN;
    END IF;
    UPDATE security SET credential_changes = credential_changes + 1
    RETURNING credential_changes INTO number;
    refused := ARRAY(
        SELECT gone.of_user FROM unnest(deleted_users, deleted_mechanisms) AS gone (of_user, of_mechanism)
        WHERE NOT EXISTS (SELECT FROM user_credentials AS kept WHERE kept.user_name = gone.of_user
            AND kept.mechanism = gone.of_mechanism AND kept.salt IS NOT NULL)
        UNION
        SELECT named FROM unnest(set_users) AS named
        WHERE users_must_exist <> EXISTS (SELECT FROM user_credentials AS kept
            WHERE kept.user_name = named AND kept.salt IS NOT NULL));
    INSERT INTO user_credentials AS kept
        (user_name, mechanism, change, salt, iterations, stored_key, server_key)
    SELECT given.of_user, given.of_mechanism, number, given.salt, given.iterations, given.stored_key,
        given.server_key
    FROM unnest(set_users, set_mechanisms, salts, iteration_counts, stored_keys, server_keys)
        AS given (of_user, of_mechanism, salt, iterations, stored_key, server_key)
    WHERE NOT given.of_user = ANY (refused)
    ON CONFLICT (user_name, mechanism) DO UPDATE SET change = excluded.change, salt = excluded.salt,
        iterations = excluded.iterations, stored_key = excluded.stored_key, server_key = excluded.server_key;
    UPDATE user_credentials AS kept
    SET change = number, salt = NULL, iterations = NULL, stored_key = NULL, server_key = NULL
    FROM unnest(deleted_users, deleted_mechanisms) AS gone (of_user, of_mechanism)
    WHERE kept.user_name = gone.of_user AND kept.mechanism = gone.of_mechanism
        AND NOT gone.of_user = ANY (refused);
    DELETE FROM user_credentials AS kept WHERE kept.change <= number - 10000 AND kept.salt IS NULL;
    RETURN QUERY SELECT unnest(refused);
END
$function$;
