-- What a new database begins with.
INSERT INTO cluster (cluster_id)
SELECT translate(rtrim(encode(uuid_send(gen_random_uuid()), 'base64'), '='), '+/', '-_');
INSERT INTO ownership DEFAULT VALUES;
INSERT INTO doubts DEFAULT VALUES;
INSERT INTO peer_secrets (secrets)
VALUES (ARRAY[uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())]);
INSERT INTO security (decoy_key) VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
INSERT INTO agents_shown DEFAULT VALUES;
INSERT INTO topic_changes DEFAULT VALUES;
INSERT INTO tenant_changes DEFAULT VALUES;
INSERT INTO acl_changes DEFAULT VALUES;
INSERT INTO quota_changes DEFAULT VALUES;
INSERT INTO producer_ids DEFAULT VALUES;
INSERT INTO journal DEFAULT VALUES;
INSERT INTO erasures DEFAULT VALUES;
SELECT add_time_partition('tombstones', 600, 1000), add_time_partition('outcomes', 600, 1000);
