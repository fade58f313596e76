-- With this secret agents prove to each other that they belong to the cluster (cache_ring/peer_proof.py).
--
-- Two secrets may be valid at a time, so that one can be renewed while agents work: the newest comes first. A secret has 244 random bits.
-- The commit journal does not hold this table: a database that is rebuilt from the bucket has the secret that this migration made there.
CREATE TABLE peer_secrets (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secrets bytea[] NOT NULL,
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO peer_secrets (secrets) VALUES (ARRAY[uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())]);
