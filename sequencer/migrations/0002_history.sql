-- History (DESIGN §9): the Parquet form of a topic, an Iceberg table whose pointer lives here.
--
-- A topic's history is on from its first row in history_tables; from then on retention stays behind what is compacted. All writers of one
-- history lock its history_tables row first (it ranks with topics in the lock order), then segments, then history_partitions.

CREATE TABLE history_tables (
    topic_id uuid PRIMARY KEY,
    metadata_key text,                             -- of the current metadata JSON; null until the first publish
    version bigint NOT NULL DEFAULT 0,             -- raised by every publish: what a publish was staged on must still be current
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz
);

CREATE TABLE history_partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    compacted_to bigint NOT NULL,                  -- offsets below are in history, or expired from it, or in history_raw_ranges
    PRIMARY KEY (topic_id, partition)
);

-- Ranges that would not decode: they stay raw, are counted, and do not block what follows.
CREATE TABLE history_raw_ranges (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    reason text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, base_offset)
);

-- A job reserves the prefix under which all that it writes lies; what it leaves behind is found by listing that prefix alone.
CREATE TABLE history_jobs (
    job_id uuid PRIMARY KEY,
    topic_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('compact', 'expire')),
    prefix text NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'published', 'abandoned')),
    lease_until timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);
CREATE UNIQUE INDEX history_jobs_one_per_topic ON history_jobs (topic_id) WHERE state = 'running';
CREATE INDEX history_jobs_ended ON history_jobs (ended_at) WHERE state <> 'running';

-- Every object that a published metadata file named: data files, manifests, manifest lists and the metadata files themselves.
CREATE TABLE history_objects (
    object_key text COLLATE "C" PRIMARY KEY,       -- listed by prefix
    topic_id uuid NOT NULL,
    written_at timestamptz NOT NULL,               -- stands in for the timestamp of records that have none; kept when a file is rewritten
    unreferenced_since timestamptz                 -- no retained snapshot names it; the garbage collector deletes it after a grace period
);
CREATE INDEX history_objects_by_topic ON history_objects (topic_id);
CREATE INDEX history_objects_unreferenced ON history_objects (unreferenced_since) WHERE unreferenced_since IS NOT NULL;
