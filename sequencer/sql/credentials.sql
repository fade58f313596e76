-- Credentials of users (sequencer/security/credentials.py).

-- name: credentials_of
SELECT user_name, mechanism, change, salt, iterations, stored_key, server_key FROM user_credentials
WHERE user_name = ANY (%(users)s::text[]) AND salt IS NOT NULL ORDER BY user_name, mechanism

-- name: decoy_key
SELECT decoy_key FROM security

-- name: newest
SELECT credential_changes FROM security

-- name: changes_after
-- A page of changes in order, deletions too.
SELECT change, user_name, mechanism, salt IS NULL AS is_deleted,
    (SELECT credential_changes FROM security) AS newest
FROM user_credentials
WHERE (change, user_name, mechanism) > (%(number)s::bigint, %(user)s::text, %(mechanism)s::text)
ORDER BY change, user_name, mechanism LIMIT %(cap)s::integer

-- name: list
-- A page in the order of the primary key.
SELECT user_name, mechanism, iterations FROM user_credentials
WHERE (user_name, mechanism) > (%(user)s::text, %(mechanism)s::text) AND salt IS NOT NULL
ORDER BY user_name, mechanism LIMIT %(cap)s::integer

-- name: list_within
-- A page in the order of users' bytes, of the users below :behind.
SELECT user_name, mechanism, iterations FROM user_credentials
WHERE (user_name COLLATE "C", mechanism) > (%(user)s::text, %(mechanism)s::text)
    AND user_name < %(behind)s::text COLLATE "C" AND salt IS NOT NULL
ORDER BY user_name COLLATE "C", mechanism LIMIT %(cap)s::integer

-- name: alter
SELECT refused_user FROM alter_credentials(%(users)s::text[], %(mechanisms)s::text[], %(salts)s::bytea[],
    %(iterations)s::integer[], %(stored_keys)s::bytea[], %(server_keys)s::bytea[],
    %(deleted_users)s::text[], %(deleted_mechanisms)s::text[], %(users_of_tenants)s::text[],
    %(of_tenants)s::text[], %(most_of_tenant)s::integer, %(users_must_exist)s::boolean)
