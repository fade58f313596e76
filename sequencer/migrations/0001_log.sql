-- The log (DESIGN §4): who the cluster is, what topics there are, which object holds which offsets, and who works on it.
--
-- No foreign keys between hot tables: their KEY SHARE locks deadlock with the commit's. Hot rows are updated in place (fillfactor, and no
-- index on a column that a commit changes). Row locks are taken in one order everywhere: topics, segments (by id), partitions (by primary
-- key), runs, producer_state. Whoever inserts, deletes or replaces runs, or moves log_start_offset, holds the partition row.

CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- 16 random bytes in URL-safe base64 without padding: 22 characters, as Kafka writes a cluster id.
INSERT INTO cluster (cluster_id)
SELECT translate(rtrim(encode(uuid_send(gen_random_uuid()), 'base64'), '='), '+/', '-_');

CREATE SEQUENCE producer_ids AS bigint START 1 CACHE 1;
CREATE SEQUENCE node_ids AS integer START 1 CACHE 1;

CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL DEFAULT '{}',            -- what was set; defaults live in the code
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz                         -- the name is free from then on; the row goes when its partitions have gone
);
CREATE UNIQUE INDEX topics_by_live_name ON topics (name) WHERE deleted_at IS NULL;
CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    state text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'deleting')),
    log_start_offset bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0 CHECK (high_watermark >= log_start_offset),
    max_timestamp_ms bigint NOT NULL DEFAULT -1,   -- over all records ever committed: the running maximum of the next run starts here
    size_bytes bigint NOT NULL DEFAULT 0,          -- of its runs
    coordinate_epoch bigint NOT NULL DEFAULT 0,    -- raised when coordinates that an agent may have cached stop being true
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);

CREATE TABLE segments (
    segment_id uuid PRIMARY KEY,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,          -- 0 until committed
    state text NOT NULL DEFAULT 'reserved' CHECK (state IN ('reserved', 'committed', 'doomed')),
    writer text NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,              -- of the reservation
    committed_at timestamptz,
    outcome bigint[],                              -- of the commit, one number per batch (commits.sql); repeated verbatim
    unreferenced_since timestamptz,                -- first seen without runs, snapshots and holds; the grace period starts here
    doomed_at timestamptz,
    deleted_at timestamptz                         -- the object's first deletion; the row stays as a tombstone for late_write_window
) WITH (fillfactor = 80);
CREATE INDEX segments_reserved ON segments (lease_until) WHERE state = 'reserved';
CREATE INDEX segments_committed ON segments (committed_at) WHERE state = 'committed';
CREATE INDEX segments_unreferenced ON segments (unreferenced_since) WHERE state = 'committed' AND unreferenced_since IS NOT NULL;
CREATE INDEX segments_doomed ON segments (doomed_at) WHERE state = 'doomed';

CREATE TABLE runs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    segment_id uuid NOT NULL,
    position bigint NOT NULL,
    length bigint NOT NULL CHECK (length > 0),
    format text NOT NULL DEFAULT 'batches' CHECK (format IN ('batches')),
    min_timestamp_ms bigint NOT NULL,
    max_timestamp_ms bigint NOT NULL,
    running_max_timestamp_ms bigint NOT NULL,      -- of this and all earlier runs of the partition, also of those since deleted
    PRIMARY KEY (topic_id, partition, base_offset)
);
CREATE INDEX runs_by_segment ON runs (segment_id);
CREATE INDEX runs_by_time ON runs (topic_id, partition, running_max_timestamp_ms, base_offset);

CREATE TABLE holds (
    segment_id uuid NOT NULL,
    job_id uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (segment_id, job_id)
);
CREATE INDEX holds_by_job ON holds (job_id);
CREATE INDEX holds_by_lease ON holds (lease_until);

CREATE TABLE producer_state (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    base_sequences integer[] NOT NULL,             -- of the last five accepted batches, oldest first; the three arrays go together
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

CREATE TABLE agents (
    node_id integer PRIMARY KEY,                   -- never reused for another address
    incarnation bigint NOT NULL,                   -- raised by every join at this address; fences the one before
    zone text NOT NULL,
    kafka_host text NOT NULL,
    kafka_port integer NOT NULL,
    peer_host text NOT NULL,
    peer_port integer NOT NULL,
    http_url text NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    UNIQUE (zone, kafka_host, kafka_port, peer_host, peer_port, http_url)
) WITH (fillfactor = 50);

CREATE TABLE jobs (
    name text PRIMARY KEY,
    holder uuid,                                   -- who runs it now, until lease_until
    lease_until timestamptz,
    last_started_at timestamptz,
    last_success_at timestamptz,
    last_error text
);
