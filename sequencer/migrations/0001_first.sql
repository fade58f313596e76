-- The first migration: schema.sql, functions/ and first_rows.sql as they were when it was written. Until the
-- first release `python -m tests.sequencer.first_migration` writes it. After the release it never changes.

-- Functions with the owner's rights keep this path (SET search_path FROM CURRENT): a table that a caller
-- makes in pg_temp then stands for none of these.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- The tables of Tidelog as they are now: who the cluster is, what topics there are, which object holds
-- which offsets, and who works on it. `functions/` has the stored functions, `first_rows.sql` what a new
-- database begins with. Developers change these files, and with the same change write a migration
-- (migrate.py).
--
-- Rules for all tables:
-- - No foreign keys between tables that commits write: their KEY SHARE locks deadlock with the commit's.
-- - Rows that change often are updated in place: fillfactor, and no index on a column that changes.
-- - Row locks are taken in one order: tenants, topics (with topic_changes and history_tables), sinks,
--   transactions by producer id, groups, segments by id, partitions by primary key, runs, producer_state,
--   transaction_partitions.
-- - A transaction that inserts, deletes or replaces runs, or moves log_start_offset, locks the partition's
--   row.
-- - A table of one row has the column `only_row`, which allows no second one.

-- --- the cluster

CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text NOT NULL,                      -- 16 random bytes in URL-safe base64 without padding, as
                                                   -- Kafka writes it
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    store_id text,                                 -- the id in the store's identity object
                                                   -- (sequencer/cluster/store_identity.py);
                                                   -- null until an agent has started
    store_name text                                -- how the first agent reached the store, for messages
);

-- Whether this database owns the bucket (sequencer/cluster/ownership.py). The bucket holds the same epoch and
-- nonce in the object `<cluster>/ownership`.
CREATE TABLE ownership (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch bigint NOT NULL DEFAULT 0,               -- raised by every take-over; 0: never ratcheted
    nonces uuid[] NOT NULL DEFAULT '{}',           -- of this epoch, newest last: those that this database
                                                   -- wrote or was about to
    ratchets bigint NOT NULL DEFAULT 0,            -- that were confirmed
    ratchet_s double precision NOT NULL DEFAULT 60, -- the pause between two, as the last holder had it
    confirmed_at timestamptz,                      -- just before the put of the last confirmed nonce, by this
                                                   -- database's clock
    -- The Postgres that ratcheted last. A copy has another system identifier, database or start. What was
    -- confirmed before is void there.
    system_identifier bigint,
    database_oid bigint,
    timeline integer,
    postmaster_started_at timestamptz,
    watched text,                                  -- what a Postgres that has started since sees in the
                                                   -- bucket, before it writes
    watched_since timestamptz,
    lost_because text,                             -- a sentence for people; not null: agents do not serve,
                                                   -- merge or delete
    lost_at timestamptz
);

-- How often a client saw Postgres give up a commit's wait for its standby. All see such a commit, and
-- perhaps no standby has it. A reader of coordinates reads this number with them, and does not believe
-- them before a standby has confirmed a later write (sequencer/database/doubts.py).
CREATE TABLE doubts (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number bigint NOT NULL DEFAULT 0
);

-- With this secret agents prove to each other that they belong to the cluster
-- (cache_ring/peers/peer_proof.py). The commit journal does not hold it: a database that is rebuilt from the
-- bucket makes its own.
CREATE TABLE peer_secrets (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secrets bytea[] NOT NULL,                      -- newest first; two are valid while one is renewed. 244
                                                   -- random bits each
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE SEQUENCE node_ids AS integer START 1 CACHE 1;

CREATE TABLE agents (
    node_id integer PRIMARY KEY,                   -- never reused for another address
    incarnation bigint NOT NULL,                   -- raised by every join at this address; fences the one
                                                   -- before
    zone text NOT NULL,
    kafka_host text NOT NULL,
    kafka_port integer NOT NULL,
    peer_host text NOT NULL,
    peer_port integer NOT NULL,
    http_url text NOT NULL,
    listeners text NOT NULL DEFAULT '[]',          -- [name, host, port] of each Kafka listener, as JSON
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    -- What other agents are shown of it. They ask only for what changed since they last looked. Renewals
    -- change neither column.
    shown bigint,                                  -- the incarnation that is shown; null: none
    change bigint NOT NULL DEFAULT 0,              -- number of the change that set it
    erased_to bigint NOT NULL DEFAULT 0,           -- the last erasures.number whose pages it has dropped
    UNIQUE (zone, kafka_host, kafka_port, peer_host, peer_port, http_url, listeners)
) WITH (fillfactor = 50);

CREATE TABLE agents_shown (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0,             -- number of the last change
    alive integer NOT NULL DEFAULT 0,
    looked_at timestamptz NOT NULL DEFAULT 'epoch' -- when leases were last compared with what is shown
) WITH (fillfactor = 50);

CREATE TABLE jobs (
    name text PRIMARY KEY,
    holder uuid,                                   -- who runs it now, until lease_until
    lease_until timestamptz,
    last_started_at timestamptz,
    last_success_at timestamptz,
    last_error text,
    progress text                                  -- where a bounded pass left off; null at its beginning
);

-- What the observer last measured (sequencer/housekeeping/observations.py). An older measurement never
-- replaces a newer one.
CREATE TABLE observation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    observed_at timestamptz NOT NULL,
    seen jsonb NOT NULL
) WITH (fillfactor = 50);

-- How far tables are behind the log, as a history service last saw it (spark_compaction/service.py).
CREATE TABLE history_lag (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    observed_at timestamptz NOT NULL,
    topics bigint NOT NULL,                        -- whose tables lack records
    late_topics bigint NOT NULL,                   -- of those, behind by more than their freshness
    behind_s double precision NOT NULL,            -- the longest
    records bigint NOT NULL,                       -- that all tables lack
    raw_bytes bigint NOT NULL                      -- their bytes in the log, an estimate
) WITH (fillfactor = 50);

-- --- tenants (docs/tenants.md)

-- How often tenants were made, changed or deleted. Agents that see another number read them again. The row is
-- locked by each change, before rows of tenants.
CREATE TABLE tenant_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What belongs to a tenant is named `<tenant>~<name>` in all tables (tenants/tenant_names.py). Who creates a
-- topic of a tenant, or adds partitions, locks its row, before topics.
CREATE TABLE tenants (
    name text COLLATE "C" PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    admins text[] NOT NULL DEFAULT '{}',           -- users of the tenant that may do everything in it
    limits jsonb NOT NULL DEFAULT '{}',            -- those that are set
    deleted_at timestamptz,                        -- the row stays: the commit journal sees rows that change,
                                                   -- not rows that go
    measured_at timestamptz NOT NULL DEFAULT 'epoch' -- when its stored bytes were last added up
);

-- The bill: what a tenant used on a day (UTC).
CREATE TABLE tenant_usage (
    day date,
    tenant text COLLATE "C",
    bytes_in bigint NOT NULL DEFAULT 0,            -- of its requests
    bytes_out bigint NOT NULL DEFAULT 0,           -- of the answers
    requests bigint NOT NULL DEFAULT 0,
    bytes_stored bigint,                           -- as last measured on that day; null: not measured
    PRIMARY KEY (day, tenant)
) WITH (fillfactor = 70);

-- The number of the last report that each agent's process added to the bill. A repeated report adds nothing.
CREATE TABLE tenant_reports (
    reporter uuid PRIMARY KEY,
    number bigint NOT NULL,
    reported_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- --- topics

CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL DEFAULT '{}',            -- what was set; defaults are in the code
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz                         -- the name is free from then on; the row goes after its
                                                   -- partitions
);
CREATE UNIQUE INDEX topics_by_live_name ON topics (name) WHERE deleted_at IS NULL;
-- Engines that read tables may not tell upper and lower case apart.
CREATE INDEX topics_by_any_case ON topics (lower(name)) WHERE deleted_at IS NULL;
-- Names that collide in Kafka's metrics (topics.sql).
CREATE INDEX topics_colliding ON topics (translate(name, '.', '_')) WHERE deleted_at IS NULL;
-- By their bytes, the names of a tenant's topics lie between <tenant>~ and <tenant>DEL.
CREATE INDEX topics_of_tenants ON topics (name COLLATE "C") INCLUDE (partition_count)
    WHERE deleted_at IS NULL AND strpos(name, '~') > 0;
CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX topics_compacted ON topics (topic_id)
    WHERE strpos(config ->> 'cleanup.policy', 'compact') > 0 AND deleted_at IS NULL;

-- The keys that encrypt topics' records, themselves encrypted (sequencer/topics/topic_keys.py). Sealed
-- batches name key_id, which is random: a key that is made after another was lost is never taken for it. The
-- bucket has a copy of each, apart from the commit journal (storage/encryption/key_objects.py).
CREATE TABLE topic_keys (
    topic_id uuid NOT NULL,
    version integer NOT NULL CHECK (version > 0),  -- the highest encrypts, all decrypt
    key_id bigint NOT NULL CHECK (key_id > 0),
    wrapped_by text NOT NULL,                      -- the name of the key that encrypted this one
    wrapped bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, version)
);
CREATE UNIQUE INDEX topic_keys_by_id ON topic_keys (topic_id, key_id);

-- Copies of topics' keys that may be in the bucket and that no row of topic_keys has: of deleted topics, and
-- of keys that are being made. They are deleted, and once more when no late write can bring them back.
CREATE TABLE key_copies_to_delete (
    topic_id uuid NOT NULL,
    key_id bigint NOT NULL,
    deleted_at timestamptz,  -- the first time, or when the key was about to be made
    PRIMARY KEY (topic_id, key_id)
);

-- How often topics were made, changed or deleted (functions/count_topic_change.sql). An agent that sees
-- another number than before looks up what changed.
CREATE TABLE topic_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Which topics each counted change made, changed or deleted: an agent forgets those, and no others. The
-- counter's row is locked until its transaction ends, so numbers become visible in their order. Every
-- number has at least one row, so a reader can tell that rows it lacks are gone. The last thousand numbers
-- are kept.
CREATE TABLE changed_topics (
    change bigint,
    topic_id uuid,
    name text NOT NULL,
    PRIMARY KEY (change, topic_id)
);

-- --- the log

CREATE TABLE partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    state text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'deleting')),
    log_start_offset bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0 CHECK (high_watermark >= log_start_offset),
    max_timestamp_ms bigint NOT NULL DEFAULT -1,   -- of all records ever committed; the running maximum of
                                                   -- the next run starts here
    size_bytes bigint NOT NULL DEFAULT 0,          -- of its runs
    local_start_offset bigint NOT NULL DEFAULT 0,  -- lower offsets may have no run: consumers read them from
                                                   -- history_files
    deleted_to bigint NOT NULL DEFAULT 0,          -- lower offsets were deleted by a request: they leave
                                                   -- history too
    coordinate_epoch bigint NOT NULL DEFAULT 0,    -- raised when coordinates that an agent may have cached
                                                   -- stop being true
    first_unstable_offset bigint,                  -- the least first offset of its open transactions; null:
                                                   -- there is none
    PRIMARY KEY (topic_id, partition)
-- Several writers of a row see each other's snapshots open, so what they replaced cannot be pruned at once:
-- room for it.
) WITH (fillfactor = 25);
-- Those whose log begins in history.
CREATE INDEX partitions_begun_in_history ON partitions (topic_id, partition)
    WHERE local_start_offset > log_start_offset;

CREATE TABLE segments (
    segment_id uuid PRIMARY KEY,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,          -- 0 until committed
    state text NOT NULL DEFAULT 'reserved' CHECK (state IN ('reserved', 'committed', 'doomed')),
    writer text NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,              -- of the reservation
    committed_at timestamptz,
    outcome bigint[],                              -- what the commit answered
                                                   -- (functions/commit_segments.sql); a repeat gets it again
    unreferenced_since timestamptz,                -- first seen without runs, snapshots and holds; the grace
                                                   -- period starts here
    doomed_at timestamptz,
    tier smallint NOT NULL DEFAULT 0               -- how often its bytes were copied: 0 as uploaded, n by
                                                   -- merging objects of tier n - 1
) WITH (fillfactor = 80);
CREATE INDEX segments_reserved ON segments (lease_until) WHERE state = 'reserved';
CREATE INDEX segments_committed ON segments (committed_at) WHERE state = 'committed';
CREATE INDEX segments_unreferenced ON segments (unreferenced_since)
    WHERE state = 'committed' AND unreferenced_since IS NOT NULL;
CREATE INDEX segments_to_delete ON segments (coalesce(unreferenced_since, doomed_at)) WHERE state = 'doomed';

-- The first run of a time is found by halving (sql/coordinates.sql), without an index: every run of every
-- commit would pay for it.
CREATE TABLE runs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    segment_id uuid NOT NULL,
    position bigint NOT NULL,                      -- first byte in the object
    length bigint NOT NULL CHECK (length > 0),     -- bytes
    format text NOT NULL DEFAULT 'batches' CHECK (format IN ('batches', 'marker')), -- marker: its segment's
                                                   -- key holds the bytes
    min_timestamp_ms bigint NOT NULL,
    max_timestamp_ms bigint NOT NULL,
    running_max_timestamp_ms bigint NOT NULL,      -- of this and all earlier runs of the partition, also of
                                                   -- those deleted since
    PRIMARY KEY (topic_id, partition, base_offset)
);
CREATE INDEX runs_by_segment ON runs (segment_id);

-- A job that reads a segment holds it: it is not doomed before the lease ends.
CREATE TABLE holds (
    segment_id uuid NOT NULL,
    job_id uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (segment_id, job_id)
);
CREATE INDEX holds_by_job ON holds (job_id);
CREATE INDEX holds_by_lease ON holds (lease_until);

-- Offsets that were acknowledged once and that no object holds any more (recovery). The log keeps their
-- place: an empty batch spans each range, so consumers skip it. A row goes when retention has passed its
-- range, or with its topic.
CREATE TABLE gone_ranges (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    reason text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, base_offset)
);

-- --- producers

-- The last ten accepted batches, oldest first: five may be in flight at the agent that a partition moves
-- from, and five at the one that it moves to.
CREATE TABLE producer_state (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    sequences bigint[] NOT NULL,                   -- base sequence * 2^31 + last sequence
    base_offsets bigint[] NOT NULL,                -- where they went
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    max_timestamps bigint[] NOT NULL,              -- what the first copy was answered with, for a duplicate
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

-- An id says when it was given out: milliseconds since 1970 * 2^10 + a count, always rising. With
-- `forgotten_before` it tells whether a producer can have had a state.
CREATE TABLE producer_ids (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_id bigint NOT NULL DEFAULT 0,
    -- every state that expiry removed was last written before it
    forgotten_before timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- --- transactions (docs/design/transactions.md)

-- A transaction is open while it has a row in transaction_partitions or transaction_groups. Who adds such a
-- row holds this one FOR SHARE. Who ends it holds it FOR NO KEY UPDATE.
CREATE TABLE transactions (
    transactional_id text COLLATE "C" PRIMARY KEY,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    -- The producer had these before. It may repeat its last request with them. -1: none.
    last_producer_id bigint NOT NULL DEFAULT -1,
    last_producer_epoch integer NOT NULL DEFAULT -1,
    timeout_ms integer NOT NULL,
    ended text CHECK (ended IN ('commit', 'abort')), -- how the last one ended; null: none has
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX transactions_by_producer ON transactions (producer_id);

-- The partitions of open transactions. Who sets first_offset holds the partition's row, too.
CREATE TABLE transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint,                           -- of its records there; null: none yet
    expires_at timestamptz NOT NULL,               -- of the least one of a transaction on, it may be aborted
    PRIMARY KEY (producer_id, topic_id, partition)
) WITH (fillfactor = 70);
CREATE INDEX transaction_partitions_unstable ON transaction_partitions (topic_id, partition, first_offset)
    WHERE first_offset IS NOT NULL;
CREATE INDEX transaction_partitions_expiring ON transaction_partitions (expires_at);

-- The groups of open transactions.
CREATE TABLE transaction_groups (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (producer_id, group_id)
);
CREATE INDEX transaction_groups_expiring ON transaction_groups (expires_at);

-- Offsets that are committed when their transaction is. Who writes here holds the group's row.
CREATE TABLE pending_offsets (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic_id, partition)
) WITH (fillfactor = 70);
CREATE INDEX pending_offsets_by_group ON pending_offsets (group_id, topic_id, partition);

-- Whose records consumers of committed data leave out. A row goes when no record of its transaction can be
-- read any more: a job deletes it once the log start has passed its marker, and a cleaning of a compacted
-- topic once it has removed its marker.
CREATE TABLE aborted_transactions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    last_offset bigint NOT NULL,                   -- of its marker
    first_offset bigint NOT NULL,                  -- of its records there
    producer_id bigint NOT NULL,
    stable_offset bigint NOT NULL,                 -- last stable offset after it: later rows begin there or
                                                   -- after
    PRIMARY KEY (topic_id, partition, last_offset)
);
CREATE INDEX aborted_transactions_by_producer
    ON aborted_transactions (topic_id, partition, producer_id, last_offset);

-- --- sinks (docs/design/transactions.md#several-as-one)

-- A sink commits the transactions of many producers as one batch. One run of one query has its name. Who
-- commits a batch holds this row before those of transactions.
CREATE TABLE sinks (
    sink_name text COLLATE "C" PRIMARY KEY,
    run_id text NOT NULL DEFAULT '',               -- the run that committed last
    id_prefix text NOT NULL DEFAULT '',            -- with which its transactional ids begin
    past_runs text[] NOT NULL DEFAULT '{}',        -- the 20 runs before it, the newest first
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- How far each streaming query has committed under a sink's name. Who writes here holds the sink's row.
CREATE TABLE sink_batches (
    sink_name text COLLATE "C" NOT NULL,
    query_id text COLLATE "C" NOT NULL,            -- of the query's checkpoint
    last_batch bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink_name, query_id)
) WITH (fillfactor = 50);

-- --- merging

-- What may be merged next. It is separate from segments, so that finding it costs commits nothing. A row is
-- deleted when its segment was merged, or is not worth merging. A transaction that locks a row here locks
-- segments afterwards, never before.
CREATE TABLE merge_candidates (
    segment_id uuid PRIMARY KEY,
    tier smallint NOT NULL,
    committed_at timestamptz NOT NULL,             -- the segment's; outputs of one merge have it in common
    size_bytes bigint NOT NULL,
    claimed_by uuid                                -- a job; counts as long as it holds the segment (holds)
);
CREATE INDEX merge_candidates_ripe ON merge_candidates (tier, committed_at, segment_id)
    INCLUDE (size_bytes) WHERE claimed_by IS NULL;
CREATE INDEX merge_candidates_claimed ON merge_candidates (claimed_by)
    INCLUDE (segment_id) WHERE claimed_by IS NOT NULL;

-- What merging did, ever. bytes_out of tier 0 is what agents uploaded. The ratio of the others to it is the
-- write amplification.
CREATE TABLE merge_tiers (
    tier smallint PRIMARY KEY,
    merges bigint NOT NULL DEFAULT 0,
    objects_in bigint NOT NULL DEFAULT 0,
    objects_out bigint NOT NULL DEFAULT 0,
    bytes_in bigint NOT NULL DEFAULT 0,            -- of the runs that were replaced
    bytes_out bigint NOT NULL DEFAULT 0,           -- of the objects that were written
    runs_in bigint NOT NULL DEFAULT 0,
    runs_out bigint NOT NULL DEFAULT 0,
    swaps_refused bigint NOT NULL DEFAULT 0,       -- the partition had changed meanwhile
    runs_damaged bigint NOT NULL DEFAULT 0,        -- left as they are: missing or corrupt
    last_success_at timestamptz
) WITH (fillfactor = 50);

-- --- log compaction

-- How far the partitions of compacted topics are clean (docs/design/log-compaction.md). Without a row a
-- partition was never cleaned, which is always safe to believe.
CREATE TABLE cleanings (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    clean_to bigint NOT NULL DEFAULT 0,            -- of the records below, each is the last one of its key
    clean_bytes bigint NOT NULL DEFAULT 0,         -- of the log below it, once it was cleaned
    mark_offsets bigint[] NOT NULL DEFAULT '{}',   -- values that clean_to had, rising, or where damage began
    marks_ms bigint[] NOT NULL DEFAULT '{}',       -- since when: tombstones and markers below count from then
    oldest_tombstone bigint,                       -- or marker, below clean_to; null: there is none
    tombstones_gone_to bigint NOT NULL DEFAULT 0,  -- some below it may have gone
    due_at timestamptz,                            -- since when there may be something to clean; or null
    claimed_by uuid,                               -- a job that cleans it, until lease_until
    lease_until timestamptz,
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);
CREATE INDEX cleanings_due ON cleanings (due_at) WHERE due_at IS NOT NULL;

-- --- garbage

-- What the last look at the database found. A longer gap between two looks was an outage, or no housekeeper
-- ran. Agents could not commit meanwhile, so dooming pauses for a lease. Another system identifier or
-- timeline is a failover: a commit may have been lost with it.
CREATE TABLE dooming (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    last_seen_at timestamptz NOT NULL,
    paused_until timestamptz NOT NULL,
    pause_reason text NOT NULL CHECK (pause_reason IN ('start', 'outage', 'failover'))
);

-- Tombstones and outcomes go by whole partitions of their tables, never row by row. A partition takes what
-- comes within an interval of this database's clock. Only the housekeeper writes here, and makes the
-- partitions beforehand. If there is none, no row is moved, and its next step tries again. Commits write to
-- neither table. They read `outcomes` only when a commit is repeated and its segment's row is gone.
CREATE SEQUENCE time_partition_numbers AS bigint;

CREATE TABLE time_partitions (
    of_table text NOT NULL CHECK (of_table IN ('tombstones', 'outcomes')),
    number bigint NOT NULL,                        -- of the partition <of_table>_<number>
    begins_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    row_count bigint NOT NULL DEFAULT 0,           -- each transaction that inserts rows adds them
    is_closed boolean NOT NULL DEFAULT false,      -- set under this row's lock, which inserts hold, too: no
                                                   -- row comes after it
    swept_to uuid,                                 -- up to this id the objects of its tombstones were deleted
                                                   -- again
    PRIMARY KEY (of_table, number)
) WITH (fillfactor = 50);

-- An object that was deleted and must be deleted once more, because an upload may arrive late. A segment's
-- row overrules its tombstone: `tidelog recover` may take a deleted object into use again.
CREATE TABLE tombstones (
    number bigint NOT NULL,
    segment_id uuid NOT NULL,
    object_key text NOT NULL
) PARTITION BY LIST (number);
CREATE INDEX tombstones_by_segment ON tombstones (segment_id);

-- What a commit answered whose segment's row is gone, for an agent that repeats the commit.
CREATE TABLE outcomes (
    number bigint NOT NULL,
    segment_id uuid NOT NULL,
    object_key text NOT NULL,
    outcome bigint[] NOT NULL
) PARTITION BY LIST (number);
CREATE INDEX outcomes_by_segment ON outcomes (segment_id);

-- What erasures changed for all (docs/design/erasure.md).
CREATE TABLE erasures (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    garbage_before timestamptz NOT NULL DEFAULT 'epoch', -- what was unreferenced before waits for readers,
                                                   -- and not for the restore horizon
    number bigint NOT NULL DEFAULT 0,              -- raised to make agents drop cached pages
    made_before timestamptz NOT NULL DEFAULT 'epoch' -- those of objects that were made before this time
) WITH (fillfactor = 50);

-- --- consumer groups

-- A group's row guards its members and its offsets: a writer of either locks it (FOR NO KEY UPDATE, several
-- in the order of group_id, ranking with topics). An offset commit locks the row and changes
-- nothing in it. Ids are compared as bytes (COLLATE "C"), as the client sorts them.

-- One sequence for all groups, so that no epoch is used twice: a coordinator that slept through the
-- deletion of its group does not match the group's next row.
CREATE SEQUENCE coordinator_epochs AS bigint START 1 CACHE 1;

CREATE TABLE groups (
    group_id text COLLATE "C" PRIMARY KEY,
    coordinator integer NOT NULL,                  -- node id of the agent that claimed it last
    coordinator_epoch bigint NOT NULL DEFAULT nextval('coordinator_epochs'), -- drawn by each claim: the fence
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- null until its coordinator has written it; it may have offsets already
    kind text CHECK (kind IN ('classic', 'consumer', 'streams')),
    generation integer NOT NULL DEFAULT 0,         -- the group epoch in the new protocol (KIP-848)
    state text NOT NULL DEFAULT 'Empty',           -- in Kafka's spelling, for listings
    protocol_type text NOT NULL DEFAULT '',        -- empty: no member ever joined, consumers without a group
                                                   -- commit offsets
    document json NOT NULL DEFAULT '{}',           -- the state machine's own. jsonb refuses the NUL that a
                                                   -- client may send
    empty_since timestamptz DEFAULT clock_timestamp() -- null while it has members
) WITH (fillfactor = 50);

CREATE TABLE group_members (
    group_id text COLLATE "C" NOT NULL,
    member_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,                        -- the member's in the new protocol, the generation in the
                                                   -- classic one
    document json NOT NULL,
    PRIMARY KEY (group_id, member_id)
) WITH (fillfactor = 70);

CREATE TABLE committed_offsets (
    group_id text COLLATE "C" NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,                       -- UTF-8; a client may write NUL, which text refuses
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (fillfactor = 50);

-- Configs that an administrator set; the group need not exist. What is not in `config` has its default. A
-- row whose configs were all taken back stays, empty: the commit journal sees rows that change, not rows
-- that go.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);

-- --- users

-- One row: how often credentials were changed, and the secret from which the answers about unknown users are
-- made (agent/security/sasl/scram.py).
CREATE TABLE security (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    credential_changes bigint NOT NULL DEFAULT 0,
    decoy_key bytea NOT NULL                       -- 244 random bits
);

-- What proves that a client knows a user's password (sequencer/security/credentials.py). A deleted credential
-- stays as a row without keys until agents have noticed. The commit journal has no copy of this table: who
-- may read the bucket must not be able to try passwords. After a recovery from the bucket alone, an operator
-- adds the users again.
CREATE TABLE user_credentials (
    user_name text NOT NULL,
    mechanism text NOT NULL CHECK (mechanism IN ('SCRAM-SHA-256', 'SCRAM-SHA-512')),
    change bigint NOT NULL,                        -- security.credential_changes of the last change
    salt bytea,                                    -- this and all below are null if it is deleted
    iterations integer,
    stored_key bytea,
    server_key bytea,
    PRIMARY KEY (user_name, mechanism),
    CHECK (num_nulls(salt, iterations, stored_key, server_key) IN (0, 4))
);
CREATE INDEX user_credentials_by_change ON user_credentials (change, user_name, mechanism);
CREATE INDEX user_credentials_by_tenant ON user_credentials (user_name COLLATE "C") WHERE salt IS NOT NULL;
-- --- security: who may do what

-- How often access control lists changed. Its row is locked by each change, before rows of acls.
CREATE TABLE acl_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL DEFAULT 0,             -- of the last change
    forgotten bigint NOT NULL DEFAULT 0,           -- rows of ACLs that were removed up to here may be gone
    acls integer NOT NULL DEFAULT 0                -- how many there are now
) WITH (fillfactor = 50);

-- Access control lists. The numbers are those of Kafka's protocol. Agents read what changed since a version.
-- A removed ACL keeps its row for a thousand changes: agents and the commit journal see rows that change,
-- not rows that go.
CREATE TABLE acls (
    acl_key bytea PRIMARY KEY,                     -- a hash of all that identifies it (security/acl.py)
    resource_type smallint NOT NULL,
    pattern_type smallint NOT NULL,
    name text NOT NULL,
    principal text NOT NULL,
    host text NOT NULL,
    operation smallint NOT NULL,
    permission smallint NOT NULL,
    version bigint NOT NULL,                       -- of its last change
    is_removed boolean NOT NULL DEFAULT false
);
CREATE INDEX acls_by_version ON acls (version, acl_key);
CREATE INDEX acls_removed ON acls (version) WHERE is_removed;
-- A tenant's name and its ~ have 64 characters at most. The names may be longer than an index takes.
CREATE INDEX acls_by_tenant ON acls (left(name, 64) COLLATE "C") WHERE NOT is_removed;

-- How often client quotas changed. Its row is locked by each change, before rows of client_quotas.
CREATE TABLE quota_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL DEFAULT 0,             -- of the last change
    forgotten bigint NOT NULL DEFAULT 0            -- entities without quotas up to here may be gone
) WITH (fillfactor = 50);

-- Client quotas (KIP-546). Agents read what changed since a version. An entity without quotas keeps its row
-- for a thousand changes: agents and the commit journal see rows that change, not rows that go.
CREATE TABLE client_quotas (
    entity jsonb PRIMARY KEY,                      -- {"user": "a", "client-id": null}; null is the default
    quotas jsonb NOT NULL,                         -- {"producer_byte_rate": 1000}
    version bigint NOT NULL                        -- of its last change
);
CREATE INDEX client_quotas_by_version ON client_quotas (version, entity);

-- Which part of each quota in use an agent wants (agent/quotas/). Only that agent writes its rows.
-- Unlogged: after a failover it is empty, agents keep their shares and report again within seconds.
CREATE UNLOGGED TABLE quota_use (
    quota_key bytea NOT NULL,                      -- a hash of the quota's kind, user, client id and address
    node_id integer NOT NULL,
    wanted double precision NOT NULL,              -- a part of the quota, in [0, 1]
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (quota_key, node_id)
) WITH (fillfactor = 50);
CREATE INDEX quota_use_by_end ON quota_use (expires_at);

-- --- history: the Parquet form of a topic, an Iceberg table whose pointer is here

-- The Iceberg table of each topic that was ever compacted. From the first publish on, retention stays behind
-- what is compacted, unless the topic's history is off. All writers of one history lock its history_tables
-- row first, then segments, then history_partitions.
CREATE TABLE history_tables (
    topic_id uuid PRIMARY KEY,
    metadata_key text,                             -- of the current metadata JSON; null until the first
                                                   -- publish of a file
    version bigint NOT NULL DEFAULT 0,             -- raised by every publish of metadata, which must have
                                                   -- been staged on the current one
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,                      -- null: nothing was published, and retention does not wait
    complete_at timestamptz,                       -- all that was committed before is in history
    waits text                                     -- why the topic's records cannot become columns; null:
                                                   -- they can, as far as the last job knew
);

CREATE TABLE history_partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    compacted_to bigint NOT NULL,                  -- lower offsets are in history, expired from it, or in
                                                   -- history_raw_ranges
    state_to bigint NOT NULL DEFAULT 0,            -- below it, history has the last record of each key alone
    tombstones_gone_to bigint NOT NULL DEFAULT 0,  -- as in cleanings, when that was begun; -1: not known
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

-- A job reserves the prefix under which all that it writes lies. What it leaves behind is found by listing
-- that prefix. Jobs of different kinds may work on one topic at the same time; two of a kind may not.
CREATE TABLE history_jobs (
    job_id uuid PRIMARY KEY,
    topic_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('compact', 'expire', 'merge', 'erase')),
    prefix text NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'published', 'abandoned')),
    lease_until timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);
CREATE UNIQUE INDEX history_jobs_one_of_a_kind ON history_jobs (topic_id, kind) WHERE state = 'running';
CREATE INDEX history_jobs_ended ON history_jobs (ended_at) WHERE state <> 'running';

-- The data files of each table's current snapshot. A job plans from these rows and reads no manifest for it.
CREATE TABLE history_files (
    object_key text COLLATE "C" PRIMARY KEY,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= first_offset),
    row_count bigint NOT NULL CHECK (row_count > 0),
    size_bytes bigint NOT NULL,
    is_full boolean NOT NULL,                      -- large enough: merging leaves it alone
    sequence_number bigint NOT NULL,               -- Iceberg's: of the snapshot that added the file
    written_at timestamptz NOT NULL,               -- stands in for the timestamp of records without one; kept
                                                   -- when a file is rewritten
    oldest timestamptz,                            -- the least timestamp; null: no record has one
    newest timestamptz,
    has_untimed boolean NOT NULL,                  -- some records have no timestamp
    begins_at timestamptz NOT NULL,                -- the time of the record that expires first
    ends_at timestamptz NOT NULL,                  -- the time of the record that expires last
    row_groups bigint[] NOT NULL                   -- four numbers per row group: first offset, position and
                                                   -- length in the object, greatest timestamp in ms (-1: no
                                                   -- record has one)
);
CREATE UNIQUE INDEX history_files_in_order ON history_files (topic_id, partition, first_offset);
CREATE INDEX history_files_small ON history_files (topic_id, partition, first_offset) WHERE NOT is_full;
CREATE INDEX history_files_by_beginning ON history_files (topic_id, begins_at);
CREATE INDEX history_files_by_end ON history_files (topic_id, ends_at);

-- Every object that a published metadata file named: data files, manifests, manifest lists and the metadata
-- files.
CREATE TABLE history_objects (
    object_key text COLLATE "C" PRIMARY KEY,       -- listed by prefix
    topic_id uuid NOT NULL,
    let_go_in bigint,                              -- the first version of the table that no longer names it;
                                                   -- null: the current one does
    unreferenced_since timestamptz,                -- no retained snapshot names it; deleted after a grace
                                                   -- period
    is_erased boolean NOT NULL DEFAULT false       -- it may hold erased records: readers outside get no
                                                   -- longer grace than the cluster's own
);
CREATE INDEX history_objects_by_topic ON history_objects (topic_id, object_key)
    WHERE unreferenced_since IS NULL;
CREATE INDEX history_objects_let_go ON history_objects (topic_id, let_go_in)
    WHERE let_go_in IS NOT NULL AND unreferenced_since IS NULL;
CREATE INDEX history_objects_unreferenced ON history_objects (unreferenced_since)
    WHERE unreferenced_since IS NOT NULL;
CREATE INDEX history_objects_unreferenced_by_topic ON history_objects (topic_id)
    WHERE unreferenced_since IS NOT NULL;
CREATE INDEX history_objects_erased ON history_objects (unreferenced_since) WHERE is_erased;

-- --- the commit journal

-- How far the copy of this database's order in the bucket has come. A writer of the journal changes the row
-- only if it is as it was read. So of several writers at once one goes on, and the others' objects are left
-- aside.
CREATE TABLE journal (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Under which ownership, and by which Postgres, the journal is written. Another one begins with a
    -- checkpoint.
    epoch bigint NOT NULL DEFAULT 0,
    system_identifier bigint,
    timeline integer,
    last_number bigint NOT NULL DEFAULT 0,         -- given out to an entry, which may never have been written
    last_entry bigint NOT NULL DEFAULT 0,          -- the last entry that is in the bucket, or what the first
                                                   -- checkpoint follows
    snapshot pg_snapshot,                          -- of that: what it shows is in the bucket; null: the
                                                   -- journal has not begun
    taken_at timestamptz,                          -- when that snapshot was taken
    topic_changes bigint NOT NULL DEFAULT -1,      -- topic_changes.changes in that snapshot
    -- Moments, and the next transaction id at each: a transaction with a higher id began later. They say
    -- how far back to look for late commits.
    mark_times timestamptz[] NOT NULL DEFAULT '{}',
    mark_xids bigint[] NOT NULL DEFAULT '{}',
    families jsonb NOT NULL DEFAULT '{}',          -- of the tables read at their own pace: their last
                                                   -- snapshot, and what it took
    written_at timestamptz,                        -- when an entry or a checkpoint was last finished
    entries bigint NOT NULL DEFAULT 0,
    entry_bytes bigint NOT NULL DEFAULT 0,         -- of all entries ever
    last_checkpoint_number bigint NOT NULL DEFAULT 0, -- given out
    checkpoint_number bigint NOT NULL DEFAULT 0,   -- the last complete one; 0: none
    checkpoint_at timestamptz,                     -- when its snapshot was taken
    checkpoint_bytes bigint NOT NULL DEFAULT 0,
    checkpoint_entry_bytes bigint NOT NULL DEFAULT 0, -- entry_bytes when it was taken
    -- While a database that was loaded from the journal is being recovered: the moment of its producers'
    -- states.
    recovering_producers_since timestamptz
) WITH (fillfactor = 25);

-- add_acls adds those ACLs that are not there, under one version, or none. It returns 0 if they are there
-- now; 1 if there would be more than `most`; 2 if a tenant would have more than its limit.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | keys, types, patterns, names, principals, hosts, operations, permissions | ACL | its columns, each once |
-- | of_tenants | ACL | the tenant that its name belongs to, or nothing |
-- | most | | how many ACLs the cluster may have |
-- | most_of_tenant | | the limit of a tenant for which none is set |
CREATE FUNCTION add_acls(
    keys bytea[], types integer[], patterns integer[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], of_tenants text[], most integer, most_of_tenant integer)
RETURNS integer
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
        RETURN 0;
    ELSIF present + missing > most THEN
        RETURN 1;
    ELSIF EXISTS (
        SELECT FROM (
            SELECT given.tenant, count(*) AS more FROM unnest(keys, of_tenants) AS given (acl_key, tenant)
            WHERE given.tenant <> ''
                AND NOT EXISTS (SELECT FROM acls AS a WHERE a.acl_key = given.acl_key AND NOT a.is_removed)
            GROUP BY given.tenant) AS asked
        LEFT JOIN tenants AS t ON t.name = asked.tenant AND t.deleted_at IS NULL
        WHERE asked.more > coalesce((t.limits ->> 'acls')::bigint, most_of_tenant) - (
            SELECT count(*) FROM acls AS a
            WHERE NOT a.is_removed AND left(a.name, 64) >= (asked.tenant || '~') COLLATE "C"
                AND left(a.name, 64) < (asked.tenant || chr(127)) COLLATE "C")) THEN
        RETURN 2;
    END IF;
    UPDATE acl_changes AS c SET version = c.version + 1, acls = present + missing
    RETURNING c.version INTO number;
    INSERT INTO acls AS a (acl_key, resource_type, pattern_type, name, principal, host, operation, permission,
        version)
    SELECT given.*, number
    FROM unnest(keys, types, patterns, names, principals, hosts, operations, permissions) AS given
    ON CONFLICT (acl_key) DO UPDATE SET version = excluded.version, is_removed = false WHERE a.is_removed;
    RETURN 0;
END
$function$;

-- add_time_partition makes the next partitions of `tombstones` or `outcomes`, until they reach over the
-- next interval. It makes a table first and attaches it then, because that stops neither readers nor
-- writers of the others. It returns false if another transaction has a lock that this needs: try again
-- later.
--
-- It has the rights of the tables' owner (SECURITY DEFINER), because the agents' role may make no tables. So
-- it takes no other tables' names, and its search_path is fixed: a caller's temporary tables come last.
--
-- | parameter | meaning |
-- |---|---|
-- | of_table | `tombstones` or `outcomes` |
-- | width_s | the interval of a partition |
-- | lock_timeout_ms | how long to wait for a lock |
CREATE FUNCTION add_time_partition(of_table text, width_s double precision,
    lock_timeout_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $function$
#variable_conflict use_column
DECLARE
    wanted_table text := of_table;
    reached timestamptz;
    added bigint;
BEGIN
    IF wanted_table NOT IN ('tombstones', 'outcomes') THEN
        RAISE 'no table that is partitioned by time: %', wanted_table;
    END IF;
    -- A partition that begins later than the next interval is from before the clock was set back.
    SELECT max(p.ends_at) INTO reached FROM time_partitions AS p
    WHERE p.of_table = wanted_table AND NOT p.is_closed
        AND p.begins_at <= clock_timestamp() + make_interval(secs => width_s);
    IF reached >= clock_timestamp() + make_interval(secs => width_s) THEN
        RETURN true;
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    PERFORM pg_advisory_xact_lock(hashtext('time_partitions'), hashtext(wanted_table));
    SELECT greatest(max(p.ends_at), clock_timestamp()) INTO reached FROM time_partitions AS p
    WHERE p.of_table = wanted_table AND p.begins_at <= clock_timestamp() + make_interval(secs => width_s);
    WHILE reached < clock_timestamp() + make_interval(secs => width_s) LOOP
        added := nextval('time_partition_numbers');
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', wanted_table || '_' || added, wanted_table);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES IN (%s)', wanted_table,
            wanted_table || '_' || added, added);
        INSERT INTO time_partitions (of_table, number, begins_at, ends_at)
        VALUES (wanted_table, added, reached, reached + make_interval(secs => width_s));
        reached := reached + make_interval(secs => width_s);
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$function$;
REVOKE ALL ON FUNCTION add_time_partition(text, double precision, integer) FROM PUBLIC;

-- add_to_transaction adds partitions and groups to a transaction, which begins with the first
-- (AddPartitionsToTxn, AddOffsetsToTxn). It locks the transaction's row FOR SHARE: only its end must wait.
-- May be repeated. If a partition does not exist, none is added.
--
-- | parameter | meaning |
-- |---|---|
-- | id, of_producer, of_epoch | the transactional id, and the producer that has it |
-- | topic_ids, partition_numbers | the partitions, in primary-key order |
-- | group_ids | the groups, in order |
-- | only_verifies | adds nothing: tells which partitions are in the transaction |
--
-- Returns one row: `verdict` 0 done; 1 fenced; 2 no such producer of this id. `missing`: the numbers, from 1,
-- of the partitions that do not exist, or that are not in the transaction.
CREATE FUNCTION add_to_transaction(id text, of_producer bigint, of_epoch integer, topic_ids uuid[],
    partition_numbers integer[], group_ids text[], only_verifies boolean)
RETURNS TABLE (verdict integer, missing integer[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_producer bigint;
    own_epoch integer;
    last_producer bigint;
    expires timestamptz;
    not_there integer[];
BEGIN
    SELECT t.producer_id, t.producer_epoch, t.last_producer_id,
        clock_timestamp() + make_interval(secs => t.timeout_ms / 1000.0)
    INTO own_producer, own_epoch, last_producer, expires
    FROM transactions AS t WHERE t.transactional_id = id FOR SHARE;
    IF own_producer IS DISTINCT FROM of_producer OR own_epoch <> of_epoch THEN
        RETURN QUERY SELECT CASE WHEN own_producer = of_producer OR last_producer = of_producer THEN 1
            ELSE 2 END, '{}'::integer[];
        RETURN;
    END IF;
    SELECT coalesce(array_agg(given.place::integer ORDER BY given.place), '{}') INTO not_there
    FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, number, place)
    LEFT JOIN LATERAL (SELECT 1 AS is_there FROM partitions AS p
        WHERE NOT only_verifies AND p.topic_id = given.topic_id AND p.partition = given.number
            AND p.state = 'live'
        UNION ALL SELECT 1 FROM transaction_partitions AS t
        WHERE only_verifies AND t.producer_id = of_producer AND t.topic_id = given.topic_id
            AND t.partition = given.number) AS found ON true
    WHERE found.is_there IS NULL;
    IF NOT only_verifies AND cardinality(not_there) = 0 THEN
        INSERT INTO transaction_partitions (producer_id, topic_id, partition, expires_at)
        SELECT of_producer, given.topic_id, given.number, expires
        FROM unnest(topic_ids, partition_numbers) AS given (topic_id, number)
        ORDER BY given.topic_id, given.number ON CONFLICT (producer_id, topic_id, partition) DO NOTHING;
        INSERT INTO transaction_groups (producer_id, group_id, expires_at)
        SELECT of_producer, given.group_id, expires FROM unnest(group_ids) AS given (group_id)
        ORDER BY given.group_id ON CONFLICT (producer_id, group_id) DO NOTHING;
    END IF;
    RETURN QUERY SELECT 0, not_there;
END
$function$;

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

-- bury_segments moves the rows of segments whose objects were deleted: the key becomes a tombstone, and the
-- outcome is kept if an agent may still ask for it. It returns how many it moved: none without a partition
-- for each table.
--
-- Several may do it at once: a row that another transaction holds is passed by. A partition takes rows
-- until it ends. Agents could not ask for outcomes while Postgres was away, so all outcomes are kept while
-- dooming pauses.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | segment_ids | segment | those whose objects were deleted |
-- | outcome_retention_s | | how long after its commit an agent may ask for an outcome |
CREATE FUNCTION bury_segments(segment_ids uuid[], outcome_retention_s double precision) RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
WITH dead AS MATERIALIZED (
    SELECT segment_id, object_key, outcome, outcome IS NOT NULL AND (
        committed_at > clock_timestamp() - make_interval(secs => outcome_retention_s)
        OR EXISTS (SELECT FROM dooming WHERE paused_until > clock_timestamp())) AS is_kept
    FROM segments WHERE segment_id = ANY(segment_ids) AND state = 'doomed'
        ORDER BY segment_id FOR UPDATE SKIP LOCKED
), taking AS MATERIALIZED (
    SELECT of_table, number, ends_at FROM time_partitions
    WHERE NOT is_closed AND statement_timestamp() < ends_at
    ORDER BY of_table, number FOR UPDATE
), place AS MATERIALIZED (
    SELECT (array_agg(number ORDER BY ends_at) FILTER (WHERE of_table = 'tombstones'))[1] AS grave,
        (array_agg(number ORDER BY ends_at) FILTER (WHERE of_table = 'outcomes'))[1] AS shelf
    FROM taking HAVING count(DISTINCT of_table) = 2
), counted AS (
    UPDATE time_partitions AS p
        SET row_count = p.row_count + (SELECT count(*) FROM dead WHERE p.of_table = 'tombstones'
        OR dead.is_kept)
    FROM place WHERE (p.of_table, p.number) IN (('tombstones', place.grave), ('outcomes', place.shelf))
), kept AS (
    INSERT INTO outcomes (number, segment_id, object_key, outcome)
    SELECT place.shelf, dead.segment_id, dead.object_key, dead.outcome FROM dead CROSS JOIN place
        WHERE dead.is_kept
), buried AS (
    INSERT INTO tombstones (number, segment_id, object_key)
    SELECT place.grave, dead.segment_id, dead.object_key FROM dead CROSS JOIN place
), gone AS (
    DELETE FROM segments AS s USING dead CROSS JOIN place WHERE s.segment_id = dead.segment_id
    RETURNING 1
)
SELECT count(*) FROM gone
$function$;

-- claim_group makes an agent the coordinator of a group and returns what it must know. No row: there is no
-- such group, and `may_create` is false.
--
-- Statement 1 raises the epoch. That waits for whatever the last coordinator has in flight. Statement 2
-- takes its snapshot afterwards. One statement would read the group's row after the wait, but its members
-- as they were before.
--
-- | parameter | meaning |
-- |---|---|
-- | claimed_group | the group's id |
-- | node_id | of the agent |
-- | may_create | make the group if there is none |
CREATE FUNCTION claim_group(claimed_group text, node_id integer, may_create boolean)
RETURNS TABLE (coordinator_epoch bigint, kind text, generation integer, state text, protocol_type text,
               document json,
               member_ids text[], member_epochs integer[], member_documents json[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    IF may_create THEN
        INSERT INTO groups AS g (group_id, coordinator) VALUES (claimed_group, node_id)
        ON CONFLICT (group_id) DO UPDATE
        SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'),
            claimed_at = clock_timestamp();
    ELSE
        UPDATE groups SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'),
            claimed_at = clock_timestamp()
        WHERE group_id = claimed_group;
    END IF;
    RETURN QUERY
    SELECT g.coordinator_epoch, g.kind, g.generation, g.state, g.protocol_type, g.document, m.ids, m.epochs,
        m.documents
    FROM groups AS g CROSS JOIN (
        SELECT coalesce(array_agg(member_id), '{}') AS ids, coalesce(array_agg(epoch), '{}') AS epochs,
               coalesce(array_agg(document), '{}') AS documents
        FROM group_members WHERE group_id = claimed_group) AS m
    WHERE g.group_id = claimed_group;
END
$function$;

-- commit_offsets applies the offset commits of many groups at once.
--
-- Statement 1 only locks the groups' rows, by id. It is a PERFORM of a locking SELECT, which a planner
-- cannot drop. Statement 2 takes its snapshot afterwards, and so sees epoch, generation and members as the
-- last holder of the locks left them. Without the lock, a commit could be judged before a take-over and
-- written after it. One statement would see the members as they were before its wait [raced]. Every writer
-- of a group's offsets holds the group's row, so the offsets that statement 2 finds do not move until it
-- ends.
--
-- All numbers count from 1.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | group_ids | group | the distinct groups |
-- | commit_groups | commit | number of its group |
-- | commit_epochs | commit | the epoch with which the coordinator claimed the group |
-- | commit_generations | commit | the generation that must hold; -1: any |
-- | commit_members | commit | the member that must be in the group; '': none |
-- | commit_member_epochs | commit | the epoch that this member must have; -1: any |
-- | offset_commits | offset | number of its commit |
-- | offset_topics, offset_partitions | offset | the partition |
-- | offset_values, offset_leader_epochs | offset | what is committed |
-- | offset_metadata | offset | of the client; may be left out if all are empty |
-- | pending_of | | NULL, or the producer whose transaction commits them (commit_pending_offsets.sql) |
--
-- If several accepted commits name a partition of a group, or one names it twice, the last wins.
--
-- Returns one number per commit: 0 done, 1 not coordinator, 2 unknown member, 3 illegal generation, 4 stale
-- member epoch. `sequencer/groups/committed_offsets.py` reads them.
CREATE FUNCTION commit_offsets(
    group_ids text[],
    commit_groups integer[], commit_epochs bigint[], commit_generations integer[], commit_members text[],
    commit_member_epochs integer[],
    offset_commits integer[], offset_topics uuid[], offset_partitions integer[], offset_values bigint[],
    offset_leader_epochs integer[], offset_metadata bytea[], pending_of bigint DEFAULT NULL)
RETURNS TABLE (verdicts integer[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM groups WHERE group_id = ANY (group_ids) ORDER BY group_id FOR NO KEY UPDATE;

    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.number, given.group_id, stored.coordinator_epoch, stored.generation, stored.is_empty
        FROM unnest(group_ids) WITH ORDINALITY AS given (group_id, number)
        CROSS JOIN LATERAL (
            SELECT g.coordinator_epoch, g.generation, g.empty_since IS NOT NULL AS is_empty FROM groups AS g
            WHERE g.group_id = given.group_id OFFSET 0) AS stored
    ), verdict AS MATERIALIZED (
        SELECT given.number, held.number AS of_group, held.group_id, CASE
            WHEN held.coordinator_epoch IS DISTINCT FROM given.epoch THEN 1
            WHEN given.member_id <> '' AND member.epoch IS NULL THEN 2
            WHEN given.member_id = '' AND given.generation < 0 AND NOT held.is_empty
                AND pending_of IS NULL THEN 2
            WHEN given.generation >= 0 AND given.generation <> held.generation THEN 3
            WHEN given.member_epoch >= 0 AND given.member_epoch <> member.epoch THEN 4
            ELSE 0 END AS kind
        FROM unnest(commit_groups, commit_epochs, commit_generations, commit_members,
             commit_member_epochs) WITH ORDINALITY
             AS given (of_group, epoch, generation, member_id, member_epoch, number)
        LEFT JOIN held ON held.number = given.of_group
        LEFT JOIN LATERAL (
            SELECT m.epoch FROM group_members AS m
            WHERE m.group_id = held.group_id AND m.member_id = given.member_id
                AND given.member_id <> '' OFFSET 0) AS member ON true
    ), accepted AS MATERIALIZED (
        SELECT DISTINCT ON (verdict.of_group, given.topic_id, given.partition)
               verdict.group_id, given.topic_id, given.partition, given.committed_offset, given.leader_epoch,
               coalesce(given.metadata, '') AS metadata
        FROM unnest(offset_commits, offset_topics, offset_partitions, offset_values, offset_leader_epochs,
             offset_metadata)
             WITH ORDINALITY AS given (of_commit, topic_id, partition, committed_offset, leader_epoch,
                 metadata, number)
        JOIN verdict ON verdict.number = given.of_commit AND verdict.kind = 0
        ORDER BY verdict.of_group, given.topic_id, given.partition, given.number DESC
    ), written AS (
        INSERT INTO committed_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch,
            metadata)
        SELECT group_id, topic_id, partition, committed_offset, leader_epoch, metadata FROM accepted
        WHERE pending_of IS NULL
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata,
            committed_at = excluded.committed_at
    ), put_aside AS (
        INSERT INTO pending_offsets AS o (producer_id, group_id, topic_id, partition, committed_offset,
            leader_epoch, metadata)
        SELECT pending_of, group_id, topic_id, partition, committed_offset, leader_epoch, metadata
        FROM accepted WHERE pending_of IS NOT NULL
        ON CONFLICT (producer_id, group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata
    )
    SELECT array_agg(kind ORDER BY number) FROM verdict;
END
$function$;

-- commit_pending_offsets takes a group's offsets into a transaction (TxnOffsetCommit): they are committed
-- when it is. It locks the transaction's row FOR SHARE, then does what commit_offsets does for one commit.
--
-- | parameter | meaning |
-- |---|---|
-- | id, of_producer, of_epoch | the transactional id, and the producer that has it |
-- | adds_group | the request adds its group itself (KIP-890); else it was added before |
-- | all others | those of commit_offsets, for one group and one commit |
--
-- Returns one row with `verdict`: 0 to 4 as in commit_offsets; 5 fenced; 6 no such producer of this id; 7 the
-- group is not in an open transaction.
CREATE FUNCTION commit_pending_offsets(
    id text, of_producer bigint, of_epoch integer, adds_group boolean,
    group_ids text[],
    commit_groups integer[], commit_epochs bigint[], commit_generations integer[], commit_members text[],
    commit_member_epochs integer[],
    offset_commits integer[], offset_topics uuid[], offset_partitions integer[], offset_values bigint[],
    offset_leader_epochs integer[], offset_metadata bytea[])
RETURNS TABLE (verdict integer)
LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_column
DECLARE
    own transactions%ROWTYPE;
    found_verdict integer;
BEGIN
    SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR SHARE;
    IF own.producer_id IS DISTINCT FROM of_producer OR own.producer_epoch <> of_epoch THEN
        RETURN QUERY SELECT CASE WHEN own.producer_id = of_producer OR own.last_producer_id = of_producer
            THEN 5 ELSE 6 END;
        RETURN;
    END IF;
    IF NOT adds_group AND NOT EXISTS (SELECT FROM transaction_groups AS g
        WHERE g.producer_id = of_producer AND g.group_id = group_ids[1]) THEN
        RETURN QUERY SELECT 7;
        RETURN;
    END IF;
    SELECT judged.verdicts[1] INTO found_verdict FROM commit_offsets(
        group_ids, commit_groups, commit_epochs, commit_generations, commit_members, commit_member_epochs,
        offset_commits, offset_topics, offset_partitions, offset_values, offset_leader_epochs,
        offset_metadata, of_producer) AS judged;
    IF found_verdict = 0 THEN
        INSERT INTO transaction_groups (producer_id, group_id, expires_at)
        VALUES (of_producer, group_ids[1],
            clock_timestamp() + make_interval(secs => own.timeout_ms / 1000.0))
        ON CONFLICT (producer_id, group_id) DO NOTHING;
    END IF;
    RETURN QUERY SELECT found_verdict;
END
$function$;

-- commit_segments gives offsets to the batches of uploaded segments. It is the authority on every outcome.
-- The fast path `sequence_segments` calls it for each commit in which something must be judged.
--
-- Statement 1 only locks: the transactions' rows by producer id (FOR SHARE: only their end waits), the
-- segments' rows by id, then the partitions' rows by primary key. It is a PERFORM of a locking SELECT, which
-- a planner cannot drop. Statement 2 takes its snapshot afterwards (VOLATILE, READ COMMITTED). So it reads
-- everything as the last holder of those locks left it. One statement would read the locked rows again after
-- a wait, but everything else as it was before the wait [raced].
--
-- It takes time in proportion to the batches: the fold finds a producer's next chain by its place in an
-- array. It sets its own join methods, because the settings of a caller (sequence_segments) hold in here,
-- too.
--
-- A chain is the batches of one producer, for one partition, in one segment, whose sequences follow one
-- another. Batches are ordered by partition, then segment, then place in the segment. All numbers count
-- from 1. A producer that waits for its answers has a handful of chains in a commit. Of one that has more
-- than 1,000 in a partition the rest is out of order, and not looked at.
--
-- | parameter | type | one entry per | meaning |
-- |---|---|---|---|
-- | segment_ids | uuid | segment | the segments in the order of the commit |
-- | segment_sizes | bigint | segment | bytes of the object |
-- | topic_ids, partition_numbers | uuid, integer | partition | the distinct partitions in primary-key order |
-- | chain_parts | integer | chain | number of its partition |
-- | chain_producers | bigint | chain | producer id |
-- | chain_epochs | integer | chain | producer epoch |
-- | chain_transactions | integer | chain | 0 none, 1 was added, 2 adds its partition; empty: all 0 |
-- | batch_parts | integer | batch | number of its partition |
-- | batch_segments | integer | batch | number of its segment |
-- | batch_positions | bigint | batch | first byte in the object |
-- | batch_lengths | integer | batch | bytes |
-- | batch_records | integer | batch | records |
-- | batch_min_timestamps, batch_max_timestamps | bigint | batch | milliseconds since 1970, or -1 |
-- | batch_chains | integer | batch | number of its chain; 0: it has no producer |
-- | batch_members | integer | batch | its place in the chain |
-- | batch_sequences | integer | batch | its base sequence |
--
-- Returns one row per segment, in the order given:
-- | column | meaning |
-- |---|---|
-- | state | `committed`, `doomed` or `missing` |
-- | object_key | of the segment |
-- | outcome | one number per batch in the order given; then, per duplicate, its first maximum timestamp |
--
-- The number of a batch is kind + 8 * offset. Kinds: 0 assigned, 1 duplicate, 2 out of order, 3 fenced epoch,
-- 4 unknown producer (the offset is the log start), 5 unknown partition, 6 written before, its offset is
-- forgotten, 7 not in an open transaction of this epoch (docs/design/transactions.md).
-- `sequencer/commits/outcomes.py` reads them. A repeated commit gets the same outcome again, from the
-- segment's row or from `outcomes`.
CREATE FUNCTION commit_segments(
    segment_ids uuid[], segment_sizes bigint[],
    topic_ids uuid[], partition_numbers integer[],
    chain_parts integer[], chain_producers bigint[], chain_epochs integer[], chain_transactions integer[],
    batch_parts integer[], batch_segments integer[], batch_positions bigint[], batch_lengths integer[],
    batch_records integer[],
    batch_min_timestamps bigint[], batch_max_timestamps bigint[],
    batch_chains integer[], batch_members integer[], batch_sequences integer[])
RETURNS TABLE (state text, object_key text, outcome bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of index look-ups: it must not be chosen again for each call, nor scan a table
-- that was small when it was made.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = on
SET enable_mergejoin = on
SET enable_material = on
SET enable_bitmapscan = on
AS $function$
#variable_conflict use_column
BEGIN
    IF cardinality(chain_transactions) > 0 THEN
        PERFORM 1
        FROM (SELECT DISTINCT number AS producer_id FROM unnest(chain_producers) AS number
            ORDER BY number) AS given
        CROSS JOIN LATERAL (
            SELECT 1 FROM transactions AS t WHERE t.producer_id = given.producer_id FOR SHARE) AS own;
    END IF;
    PERFORM 1 FROM segments WHERE segment_id = ANY (segment_ids) ORDER BY segment_id FOR NO KEY UPDATE;
    PERFORM 1
    FROM unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
        JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p;

    RETURN QUERY
    WITH RECURSIVE segment AS MATERIALIZED (
        SELECT given.segment, given.size_bytes, stored.*
        FROM unnest(segment_ids, segment_sizes) WITH ORDINALITY AS given (segment_id, size_bytes, segment)
        LEFT JOIN LATERAL (
            SELECT s.ctid AS row, s.state, s.object_key, s.outcome FROM segments AS s
            WHERE s.segment_id = given.segment_id OFFSET 0) AS stored ON true
    ), part AS MATERIALIZED (
        SELECT given.part, stored.*
        FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, partition, part)
        CROSS JOIN LATERAL (
            SELECT p.ctid AS row, p.* FROM partitions AS p
            WHERE p.topic_id = given.topic_id AND p.partition = given.partition
                AND p.state = 'live' OFFSET 0) AS stored
    ), batch AS MATERIALIZED (
        -- Numbered without gaps, so that the number is a place in the arrays made below.
        SELECT given.*, row_number() OVER (ORDER BY given.place)::integer AS batch,
               given.base_sequence::bigint << 31
               | ((given.base_sequence::bigint + given.records - 1) & 2147483647) AS sequences
        FROM unnest(batch_parts, batch_segments, batch_positions, batch_lengths, batch_records,
                    batch_min_timestamps, batch_max_timestamps, batch_chains, batch_members, batch_sequences)
             WITH ORDINALITY AS given (
                    part, segment, position, length, records,
                    min_timestamp_ms, max_timestamp_ms, chain, member, base_sequence, place)
        JOIN segment ON segment.segment = given.segment AND segment.state = 'reserved'
    ), members AS MATERIALIZED (
        SELECT chain, batch, base_sequence, sequences, max_timestamp_ms,
            row_number() OVER (ORDER BY chain, batch) AS place
        FROM batch WHERE chain > 0
    ), chain AS MATERIALIZED (
        -- Of a chain in a transaction, `refusal` says why the transaction does not take it.
        SELECT given.*, of_chain.first, of_chain.last,
            CASE WHEN coalesce(chain_transactions[given.chain], 0) > 0 THEN (
                SELECT CASE WHEN max(t.producer_epoch) > given.producer_epoch THEN 3
                     WHEN max(t.producer_epoch) IS DISTINCT FROM given.producer_epoch THEN 7
                     WHEN chain_transactions[given.chain] = 1 AND NOT EXISTS (
                         SELECT FROM transaction_partitions AS added
                         WHERE added.producer_id = given.producer_id AND added.topic_id = part.topic_id
                             AND added.partition = part.partition) THEN 7 END
                FROM transactions AS t WHERE t.producer_id = given.producer_id) END AS refusal,
            row_number() OVER (ORDER BY given.part, given.producer_id, given.chain) AS place
        FROM unnest(chain_parts, chain_producers, chain_epochs)
             WITH ORDINALITY AS given (part, producer_id, producer_epoch, chain)
        JOIN (SELECT chain, min(place) AS first, max(place) AS last FROM members
            GROUP BY chain) AS of_chain ON of_chain.chain = given.chain
        JOIN part ON part.part = given.part
    ), flat AS MATERIALIZED (
        -- The same as arrays: a look at a place in them costs the same wherever it is. Batches lie chain
        -- after chain, chains producer after producer; a chain's batches are the places from its first to
        -- its last.
        SELECT * FROM (
            SELECT array_agg(base_sequence ORDER BY place) AS base_sequences,
                   array_agg(sequences ORDER BY place) AS sequences,
                   array_agg(-batch::bigint ORDER BY place) AS base_offsets,
                   array_agg(max_timestamp_ms ORDER BY place) AS max_timestamps
            FROM members) AS of_members, (
            SELECT array_agg(chain ORDER BY place) AS chains,
                   array_agg(producer_epoch ORDER BY place) AS epochs,
                   array_agg(refusal ORDER BY place) AS refusals,
                   array_agg(first ORDER BY place) AS firsts, array_agg(last ORDER BY place) AS lasts
            FROM chain) AS of_chains
    ), fold AS (
        -- A producer's chains in turn, each judged against the state that its predecessors left, before
        -- them the stored state. Within a chain only one batch can be the next expected: from it on
        -- (accepted_from) all follow, those before it are duplicates or rejected. (Sequences would have to
        -- go once around within a chain for it to be otherwise: 2^31 records.) A base offset that is not
        -- known yet stands in the state as minus the batch's number. `expected` is the next sequence before
        -- the chain, if its epoch is the state's.
        SELECT producer.part, producer.producer_id, producer.first - 1 AS turn, producer.last,
               NULL::bigint AS chain,
               NULL::integer AS accepted_from, NULL::integer AS rejection,
               NULL::bigint[] AS seen_sequences, NULL::bigint[] AS seen_offsets,
               NULL::bigint[] AS seen_timestamps,
               NULL::bigint AS expected,
               stored.producer_epoch, stored.sequences, stored.base_offsets, stored.max_timestamps
        FROM (
            SELECT part, producer_id, min(place) AS first, least(max(place), min(place) + 999) AS last
                FROM chain GROUP BY part, producer_id
        ) AS producer JOIN part ON part.part = producer.part
        LEFT JOIN LATERAL (
            SELECT s.producer_epoch, s.sequences, s.base_offsets, s.max_timestamps FROM producer_state AS s
            WHERE s.topic_id = part.topic_id AND s.partition = part.partition
                AND s.producer_id = producer.producer_id OFFSET 0
        ) AS stored ON true
        UNION ALL
        SELECT f.part, f.producer_id, f.turn + 1, f.last, c.chain, decided.accepted_from,
               CASE WHEN c.refusal IS NOT NULL THEN c.refusal WHEN f.producer_epoch IS NULL THEN 4
                   WHEN c.producer_epoch < f.producer_epoch THEN 3 ELSE 2 END,
               same.sequences, same.base_offsets, same.max_timestamps, same.expected,
               CASE WHEN decided.accepted_from IS NULL THEN f.producer_epoch ELSE c.producer_epoch END,
               reached.sequences[greatest(cardinality(reached.sequences) - 9, 1):],
               reached.base_offsets[greatest(cardinality(reached.base_offsets) - 9, 1):],
               reached.max_timestamps[greatest(cardinality(reached.max_timestamps) - 9, 1):]
        FROM fold AS f CROSS JOIN flat
        CROSS JOIN LATERAL (
            SELECT flat.chains[f.turn + 1] AS chain, flat.epochs[f.turn + 1] AS producer_epoch,
                   flat.refusals[f.turn + 1] AS refusal, flat.firsts[f.turn + 1] AS first,
                   flat.lasts[f.turn + 1] AS last) AS place
        CROSS JOIN LATERAL (
            SELECT place.chain, place.producer_epoch, place.refusal,
                   flat.base_sequences[place.first:place.last] AS base_sequences,
                       flat.sequences[place.first:place.last] AS sequences,
                   flat.base_offsets[place.first:place.last] AS base_offsets,
                   flat.max_timestamps[place.first:place.last] AS max_timestamps
        ) AS c
        CROSS JOIN LATERAL (
            SELECT CASE WHEN c.producer_epoch = f.producer_epoch THEN f.sequences END AS sequences,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.base_offsets END AS base_offsets,
                   CASE WHEN c.producer_epoch = f.producer_epoch THEN f.max_timestamps END AS max_timestamps,
                   CASE WHEN c.producer_epoch = f.producer_epoch
                        THEN (f.sequences[cardinality(f.sequences)] + 1) & 2147483647 END AS expected) AS same
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN c.refusal IS NOT NULL THEN NULL
                WHEN f.producer_epoch IS NULL OR c.producer_epoch > f.producer_epoch
                    THEN array_position(c.base_sequences, 0)
                WHEN c.producer_epoch = f.producer_epoch
                    THEN array_position(c.base_sequences, same.expected::integer)
                END AS accepted_from) AS decided
        CROSS JOIN LATERAL (
            SELECT CASE WHEN decided.accepted_from IS NULL THEN f.sequences
                        ELSE same.sequences || c.sequences[decided.accepted_from:] END AS sequences,
                   CASE WHEN decided.accepted_from IS NULL THEN f.base_offsets
                        ELSE same.base_offsets || c.base_offsets[decided.accepted_from:] END AS base_offsets,
                   CASE WHEN decided.accepted_from IS NULL THEN f.max_timestamps
                        ELSE same.max_timestamps || c.max_timestamps[decided.accepted_from:] END
                            AS max_timestamps
        ) AS reached
        WHERE f.turn < f.last
    ), verdict AS MATERIALIZED (
        -- What lies wholly before the next expected sequence of its epoch was accepted once, since nothing
        -- is accepted but in turn; how far back "before" reaches is half the circle. A state that is not
        -- there was never there, unless it may have been forgotten: the producer id (which says in which
        -- millisecond it was given out) is older than what expiry removed, or than the topic.
        SELECT batch.*, part.high_watermark, part.log_start_offset,
               fold.seen_offsets[duplicate.place] AS first_offset,
                   fold.seen_timestamps[duplicate.place] AS first_timestamp_ms,
               CASE WHEN part.part IS NULL THEN 5
                    WHEN batch.chain = 0 OR batch.member >= fold.accepted_from THEN 0
                    WHEN duplicate.place IS NOT NULL THEN 1
                    WHEN (fold.expected - batch.base_sequence) & 2147483647 BETWEEN batch.records
                        AND 1073741824 THEN 6
                    WHEN fold.rejection = 4
                        AND to_timestamp(((fold.producer_id >> 10) + 1) / 1000.0) >= greatest(
                        (SELECT forgotten_before FROM producer_ids WHERE only_row),
                        (SELECT created_at FROM topics AS t WHERE t.topic_id = part.topic_id)) THEN 2
                    ELSE coalesce(fold.rejection, 2) END AS kind
        FROM batch LEFT JOIN part ON part.part = batch.part LEFT JOIN fold ON fold.chain = batch.chain
        CROSS JOIN LATERAL (SELECT array_position(fold.seen_sequences, batch.sequences) AS place) AS duplicate
    ), placed AS MATERIALIZED (
        SELECT verdict.*,
               CASE WHEN kind = 0 THEN high_watermark + sum(records) OVER earlier - records END
                   AS base_offset,
               lag(segment) OVER earlier IS DISTINCT FROM segment
               OR lag(position + length) OVER earlier <> position AS starts_run
        FROM verdict
        WINDOW earlier AS (PARTITION BY part, kind = 0 ORDER BY batch ROWS UNBOUNDED PRECEDING)
    ), offsets AS MATERIALIZED (
        SELECT array_agg(coalesce(base_offset, -1) ORDER BY batch) AS of_batch FROM placed
    ), member_of_run AS (
        SELECT placed.*, count(*) FILTER (WHERE starts_run) OVER (PARTITION BY part
            ORDER BY batch ROWS UNBOUNDED PRECEDING) AS run
        FROM placed WHERE kind = 0
    ), run AS (
        SELECT part, run, min(segment) AS segment, min(base_offset) AS base_offset,
               max(base_offset + records - 1) AS last_offset,
               min(position) AS position, sum(length) AS length,
               min(min_timestamp_ms) AS min_timestamp_ms, max(max_timestamp_ms) AS max_timestamp_ms
        FROM member_of_run GROUP BY part, run
    ), inserted AS (
        INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                          min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
        SELECT part.topic_id, part.partition, run.base_offset, run.last_offset, segment_ids[run.segment],
               run.position, run.length,
               run.min_timestamp_ms, run.max_timestamp_ms,
               greatest(part.max_timestamp_ms,
               max(run.max_timestamp_ms) OVER (PARTITION BY run.part ORDER BY run.run))
        FROM run JOIN part ON part.part = run.part
    ), opened AS (
        -- Where each transaction's accepted records begin in this commit.
        SELECT part, chain_producers[chain] AS producer_id, min(base_offset) AS first_offset
        FROM placed WHERE kind = 0 AND chain_transactions[chain] > 0
        GROUP BY part, chain_producers[chain]
    ), total AS (
        SELECT part, sum(records) AS records, sum(length) AS length,
               max(max_timestamp_ms) AS max_timestamp_ms,
               min(base_offset) FILTER (WHERE chain_transactions[chain] > 0) AS first_in_transaction
        FROM placed WHERE kind = 0 GROUP BY part
    ), advanced AS (
        -- By ctid, here and below: the rows are locked, so they are where statement 2 saw them.
        UPDATE partitions SET high_watermark = part.high_watermark + total.records,
               size_bytes = part.size_bytes + total.length,
               max_timestamp_ms = greatest(part.max_timestamp_ms, total.max_timestamp_ms),
               first_unstable_offset = coalesce(part.first_unstable_offset, total.first_in_transaction)
        FROM total JOIN part ON part.part = total.part
        WHERE partitions.ctid = part.row
    ), entered AS (
        INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
        SELECT opened.producer_id, part.topic_id, part.partition, opened.first_offset,
            clock_timestamp() + make_interval(secs => (
                SELECT timeout_ms FROM transactions AS own
                WHERE own.producer_id = opened.producer_id) / 1000.0)
        FROM opened JOIN part ON part.part = opened.part
        ORDER BY opened.producer_id, part.topic_id, part.partition
        ON CONFLICT (producer_id, topic_id, partition) DO UPDATE SET first_offset = excluded.first_offset
        WHERE t.first_offset IS NULL
    ), remembered AS (
        -- A state whose newest offset is a number of this commit's batches has changed.
        INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences,
            base_offsets, max_timestamps)
        SELECT part.topic_id, part.partition, latest.producer_id, latest.producer_epoch, latest.sequences,
            ARRAY(
            SELECT CASE WHEN base_offset < 0 THEN (SELECT of_batch FROM offsets)[-base_offset::integer]
                ELSE base_offset END
            FROM unnest(latest.base_offsets) WITH ORDINALITY AS known (base_offset, place) ORDER BY place),
                latest.max_timestamps
        FROM (SELECT DISTINCT ON (part, producer_id) * FROM fold
            ORDER BY part, producer_id, turn DESC) AS latest
        JOIN part ON part.part = latest.part
        WHERE latest.base_offsets[cardinality(latest.base_offsets)] < 0
        ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, sequences = excluded.sequences,
            base_offsets = excluded.base_offsets,
            max_timestamps = excluded.max_timestamps, updated_at = excluded.updated_at
    ), decided AS MATERIALIZED (
        SELECT segment, array_agg(kind + 8 * CASE kind
            WHEN 0 THEN base_offset
            WHEN 1 THEN CASE WHEN first_offset < 0
                THEN (SELECT of_batch FROM offsets)[-first_offset::integer] ELSE first_offset END
            WHEN 4 THEN log_start_offset
            ELSE 0 END ORDER BY batch)
            || coalesce(array_agg(first_timestamp_ms ORDER BY batch) FILTER (WHERE kind = 1), '{}') AS outcome
        FROM placed GROUP BY segment
    ), committed AS (
        UPDATE segments SET state = 'committed', size_bytes = segment.size_bytes,
               committed_at = clock_timestamp(),
               outcome = coalesce(decided.outcome, '{}')
        FROM segment LEFT JOIN decided ON decided.segment = segment.segment
        WHERE segments.ctid = segment.row AND segment.state = 'reserved'
    )
    -- A repeat of a commit gets its first outcome, even if the segment has become garbage since and its
    -- object is deleted. The outcome is in the segment's row, later in `outcomes`. If it is in neither, it
    -- is not known any more, and the answer is: missing.
    SELECT CASE WHEN segment.state = 'reserved' OR coalesce(segment.outcome, kept.outcome) IS NOT NULL
                THEN 'committed'
                WHEN segment.state = 'doomed' THEN 'doomed' ELSE 'missing' END,
           coalesce(segment.object_key, kept.object_key),
               coalesce(segment.outcome, kept.outcome, decided.outcome, '{}')
    FROM segment LEFT JOIN decided ON decided.segment = segment.segment
    LEFT JOIN LATERAL (
        SELECT * FROM kept_outcome(segment_ids[segment.segment])
        WHERE segment.outcome IS NULL AND segment.state IS DISTINCT FROM 'reserved') AS kept ON true
    ORDER BY segment.segment;
END
$function$;

-- commit_sink_batch commits the transactions of a sink's batch as one, once
-- (docs/design/transactions.md#several-as-one).
--
-- It locks the sink's row first, so that a repeat and a rival wait here. Then it locks the transactions, and
-- judges all of them before it ends any: a batch is committed as a whole or not at all. A run that commits
-- takes the sink's name, and the run that had it is fenced.
--
-- | parameter | meaning |
-- |---|---|
-- | of_sink | the sink's name |
-- | of_run, of_prefix | who commits, and how its transactional ids begin |
-- | of_query, of_batch | a batch of a streaming query, or NULL: the run commits once |
-- | all others | as of end_transactions, an element for each transaction |
--
-- Returns a row for each transaction, or one row without a place:
-- | column | meaning |
-- |---|---|
-- | outcome | 0 committed now; 1 committed before; 2 another run has the name; 3 a transaction is not open |
-- | lost | with outcome 3: the numbers, from 1, of transactions that are not open any more |
-- | left_prefix | with outcome 0: how the ids of the run begin that had the name until now; '' if none |
-- | all others | as of end_transactions |
CREATE FUNCTION commit_sink_batch(
    of_sink text, of_run text, of_prefix text, of_query text, of_batch bigint,
    ids text[], of_producers bigint[], of_epochs integer[],
    marker_segments uuid[], marker_keys text[], markers_bytes integer[])
RETURNS TABLE (outcome integer, lost integer[], left_prefix text, place integer, verdict integer,
    producer_id bigint, producer_epoch integer, topic_ids uuid[], partition_numbers integer[],
    marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_hashagg = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_run text;
    own_prefix text;
    older_runs text[];
    was_committed boolean;
    found_outcome integer := 0;
    not_open integer[];
BEGIN
    -- Locks the row, also if another request makes it now, or a job has just removed it.
    INSERT INTO sinks AS s (sink_name) VALUES (of_sink)
    ON CONFLICT (sink_name) DO UPDATE SET changed_at = clock_timestamp()
    RETURNING s.run_id, s.id_prefix, s.past_runs INTO own_run, own_prefix, older_runs;

    -- A run without a query commits once. It is in the row only if it has.
    SELECT of_query IS NULL AND (own_run = of_run OR of_run = ANY (older_runs))
        OR EXISTS (SELECT FROM sink_batches AS b
            WHERE b.sink_name = of_sink AND b.query_id = of_query AND b.last_batch >= of_batch)
    INTO was_committed;
    IF was_committed THEN
        found_outcome := 1;
    ELSIF of_run = ANY (older_runs) THEN
        found_outcome := 2;
    ELSE
        PERFORM 1 FROM transactions AS t WHERE t.transactional_id = ANY (ids)
        ORDER BY t.producer_id FOR NO KEY UPDATE;

        SELECT array_agg(given.place::integer ORDER BY given.place) INTO not_open
        FROM unnest(ids, of_producers, of_epochs) WITH ORDINALITY AS given (id, producer, epoch, place)
        LEFT JOIN LATERAL (SELECT t.producer_id, t.producer_epoch FROM transactions AS t
            WHERE t.transactional_id = given.id OFFSET 0) AS known ON true
        WHERE (known.producer_id = given.producer AND known.producer_epoch = given.epoch
            AND (EXISTS (SELECT FROM transaction_partitions AS p
                    WHERE p.producer_id = given.producer OFFSET 0)
                OR EXISTS (SELECT FROM transaction_groups AS g
                    WHERE g.producer_id = given.producer OFFSET 0))) IS NOT TRUE;
        IF not_open IS NOT NULL THEN
            found_outcome := 3;
        END IF;
    END IF;
    IF found_outcome <> 0 THEN
        RETURN QUERY SELECT found_outcome, coalesce(not_open, '{}'), '', NULL::integer, NULL::integer,
            NULL::bigint, NULL::integer, NULL::uuid[], NULL::integer[], NULL::bigint[], NULL::bigint[],
            NULL::bigint[];
        RETURN;
    END IF;

    IF own_run <> of_run THEN
        UPDATE sinks AS s SET run_id = of_run, id_prefix = of_prefix,
            past_runs = (array_remove(ARRAY[own_run], '') || older_runs)[1:20]
        WHERE s.sink_name = of_sink;
    END IF;
    IF of_query IS NOT NULL THEN
        INSERT INTO sink_batches AS b (sink_name, query_id, last_batch) VALUES (of_sink, of_query, of_batch)
        ON CONFLICT (sink_name, query_id) DO UPDATE
        SET last_batch = excluded.last_batch, changed_at = excluded.changed_at;
    END IF;
    RETURN QUERY SELECT 0, '{}'::integer[],
        CASE WHEN own_run <> of_run AND own_prefix <> of_prefix THEN own_prefix ELSE '' END, ended.*
    FROM (VALUES (1)) AS one (row) LEFT JOIN LATERAL end_transactions(
        ids, of_producers, of_epochs, array_fill(true, ARRAY[cardinality(ids)]),
        array_fill('client2'::text, ARRAY[cardinality(ids)]), marker_segments, marker_keys,
        markers_bytes) AS ended ON true;
END
$function$;

-- count_topic_change counts a change of topics and notes which topics it changed (triggers of `topics`).
--
-- It runs in the transaction of the change, so a reader who sees the number sees the change. In the lock
-- order the counter's row comes right after topics: its holder waits for no topic.
CREATE FUNCTION count_topic_change() RETURNS trigger LANGUAGE plpgsql AS $function$
DECLARE
    number bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM changed) THEN
        RETURN NULL;
    END IF;
    UPDATE topic_changes SET changes = changes + 1 RETURNING changes INTO number;
    -- A database that is loaded from the journal takes over the counter, too, and may count a number twice.
    -- Then the counter leaps, and agents forget all.
    INSERT INTO changed_topics (change, topic_id, name) SELECT number, topic_id, name
        FROM changed ON CONFLICT DO NOTHING;
    DELETE FROM changed_topics WHERE change <= number - 1000;
    RETURN NULL;
END
$function$;

-- A trigger of two events cannot name the rows that it is for.
CREATE TRIGGER topics_made AFTER INSERT ON topics REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_topic_change();
CREATE TRIGGER topics_changed AFTER UPDATE ON topics REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_topic_change();

-- delete_group deletes a group with its offsets, pending ones too, if it has no members. It returns
-- `deleted`, `not empty` or `not coordinator`. It locks the row first: an offset commit is then either seen
-- and deleted, or finds no group.
--
-- | parameter | meaning |
-- |---|---|
-- | deleted_group | the group's id |
-- | held_epoch | the epoch with which the coordinator claimed the group |
CREATE FUNCTION delete_group(deleted_group text, held_epoch bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
DECLARE
    since timestamptz;
BEGIN
    SELECT empty_since INTO since FROM groups WHERE group_id = deleted_group
        AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'not coordinator';
    ELSIF since IS NULL THEN
        RETURN 'not empty';
    END IF;
    DELETE FROM committed_offsets WHERE group_id = deleted_group;
    DELETE FROM pending_offsets WHERE group_id = deleted_group;
    DELETE FROM group_members WHERE group_id = deleted_group;
    DELETE FROM groups WHERE group_id = deleted_group;
    RETURN 'deleted';
END
$function$;

-- delete_offsets deletes some offsets of a group, pending ones too. It returns false, and deletes nothing,
-- if another agent has claimed the group.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | of_group | | the group's id |
-- | held_epoch | | the epoch with which the coordinator claimed the group |
-- | topic_ids, partition_numbers | offset | the partition |
CREATE FUNCTION delete_offsets(of_group text, held_epoch bigint, topic_ids uuid[],
    partition_numbers integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    PERFORM 1 FROM groups WHERE group_id = of_group AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM committed_offsets AS o USING unnest(topic_ids, partition_numbers) AS given (topic_id,
        partition)
    WHERE o.group_id = of_group AND o.topic_id = given.topic_id AND o.partition = given.partition;
    DELETE FROM pending_offsets AS o USING unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
    WHERE o.group_id = of_group AND o.topic_id = given.topic_id AND o.partition = given.partition;
    RETURN true;
END
$function$;

-- demand_durability raises unless what this transaction writes survives its acknowledgement. The
-- transaction itself asks: no check before it can replace that.
--
-- A write does not survive in a database that has lost the bucket, or that is being recovered. The recovery
-- itself sets tidelog.recovers.
--
-- A reload of the configuration takes effect between two messages of a session. So synchronous_commit, once
-- it was found strong enough, is set for the rest of the transaction: the commit that follows cannot find
-- it weakened. synchronous_standby_names cannot be held like this. tidelog.standbys_expected is an option
-- of the session (sequencer/database/options.py).
CREATE FUNCTION demand_durability() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    level constant text := current_setting('synchronous_commit');
    lost constant text := (SELECT lost_because FROM ownership);
BEGIN
    IF lost IS NOT NULL AND current_setting('tidelog.recovers', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'TLD02', MESSAGE = lost;
    END IF;
    IF level NOT IN ('on', 'remote_apply') THEN
        RAISE EXCEPTION USING ERRCODE = 'TLD01', MESSAGE = format(
            'synchronous_commit is %s: an acknowledged record could be lost; set it to on', level);
    END IF;
    IF current_setting('tidelog.standbys_expected', true) = 'on'
        AND btrim(current_setting('synchronous_standby_names')) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'TLD01', MESSAGE =
            'synchronous_standby_names is empty although standbys are expected:'
            || ' a failover would lose acknowledged records';
    END IF;
    PERFORM set_config('synchronous_commit', level, true);
END
$function$;

-- drop_time_partition drops a closed partition with all its rows. It returns false if another transaction
-- has a lock that this needs: try again later. It waits no longer than given, since readers of the table
-- wait behind it.
--
-- It has the rights of the tables' owner, as add_time_partition has.
--
-- | parameter | meaning |
-- |---|---|
-- | of_table | `tombstones` or `outcomes` |
-- | number | of the partition |
-- | lock_timeout_ms | how long to wait for a lock |
CREATE FUNCTION drop_time_partition(of_table text, number bigint, lock_timeout_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $function$
#variable_conflict use_variable
BEGIN
    IF of_table NOT IN ('tombstones', 'outcomes') THEN
        RAISE 'no table that is partitioned by time: %', of_table;
    END IF;
    PERFORM set_config('lock_timeout', lock_timeout_ms::text, true);
    DELETE FROM time_partitions AS p WHERE p.of_table = drop_time_partition.of_table
        AND p.number = drop_time_partition.number AND p.is_closed;
    IF FOUND THEN
        EXECUTE format('DROP TABLE %I', of_table || '_' || number);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$function$;
REVOKE ALL ON FUNCTION drop_time_partition(text, bigint, integer) FROM PUBLIC;

-- end_transaction commits or aborts an open transaction: the markers in its partitions, its pending offsets,
-- and its own row, in one transaction (docs/design/transactions.md).
--
-- Each statement that decides comes after the locks that it needs: first the transaction's row, then the
-- groups with pending offsets, then the partitions with records. Commits that add to the transaction hold its
-- row FOR SHARE, so there are none meanwhile, and later ones find it ended.
--
-- | parameter | meaning |
-- |---|---|
-- | id | the transactional id |
-- | of_producer, of_epoch | which producer ends it, or whose transaction is to be ended |
-- | is_commit | or else it aborts |
-- | cause | who ends it: `client`, or `client2` of transaction.version 2 (KIP-890), or `fence`, `restart` or
--   `timeout` (only if its time is over) |
-- | marker_segment, marker_key, marker_bytes | of the object that is the marker |
--
-- The epoch rises with each end, but not for `client`. After a `fence` the producer cannot go on.
--
-- Returns one row:
-- | column | meaning |
-- |---|---|
-- | verdict | 0 done, now or before; 1 fenced; 2 no such producer of this id; 3 nothing to end |
-- | producer_id, producer_epoch | which the producer has from now on |
-- | topic_ids, partition_numbers | where markers were written now |
-- | marker_offsets, first_offsets | of each: the marker's offset, and the first of its records |
-- | first_unstables | of each: the partition's first unstable offset from now on, or -1 |
CREATE FUNCTION end_transaction(
    id text, of_producer bigint, of_epoch integer, is_commit boolean, cause text,
    marker_segment uuid, marker_key text, marker_bytes integer)
RETURNS TABLE (verdict integer, producer_id bigint, producer_epoch integer, topic_ids uuid[],
    partition_numbers integer[], marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by key: it must not be chosen while the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    own_producer bigint;
    own_epoch integer;
    last_producer bigint;
    last_epoch integer;
    last_end text;
    is_open boolean;
    new_end text := CASE WHEN is_commit THEN 'commit' ELSE 'abort' END;
    next_producer bigint;
    next_epoch integer;
    found_topics uuid[];
    found_numbers integer[];
    firsts bigint[];
    markers bigint[];
    newest bigint[];
    unstables_before bigint[];
    unstables bigint[];
BEGIN
    SELECT t.producer_id, t.producer_epoch, t.last_producer_id, t.last_producer_epoch, t.ended
    INTO own_producer, own_epoch, last_producer, last_epoch, last_end
    FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    -- A client that keeps its epoch may have begun its next transaction since this one was seen to be late
    -- [raced]. That one has time.
    SELECT EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = own_producer
            AND (cause <> 'timeout' OR p.expires_at < clock_timestamp()))
        OR EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = own_producer
            AND (cause <> 'timeout' OR g.expires_at < clock_timestamp()))
    INTO is_open;

    IF own_producer = of_producer AND own_epoch = of_epoch THEN
        IF NOT is_open AND (is_commit OR cause <> 'client2') THEN
            RETURN QUERY SELECT CASE WHEN cause = 'client' AND last_end = new_end THEN 0 ELSE 3 END,
                own_producer, own_epoch, '{}'::uuid[], '{}'::integer[], '{}'::bigint[], '{}'::bigint[],
                '{}'::bigint[];
            RETURN;
        END IF;
    ELSE
        RETURN QUERY SELECT CASE
                WHEN own_producer IS NULL THEN 2
                WHEN last_producer = of_producer AND last_epoch = of_epoch AND last_end = new_end
                    AND cause = 'client2' THEN 0
                WHEN own_producer <> of_producer AND last_producer <> of_producer THEN 2
                ELSE 1 END,
            own_producer, own_epoch, '{}'::uuid[], '{}'::integer[], '{}'::bigint[], '{}'::bigint[],
            '{}'::bigint[];
        RETURN;
    END IF;

    PERFORM 1 FROM groups AS g
    WHERE g.group_id = ANY (ARRAY(SELECT o.group_id FROM pending_offsets AS o
        WHERE o.producer_id = of_producer))
    ORDER BY g.group_id FOR NO KEY UPDATE;

    -- Not of partitions that are being deleted.
    SELECT array_agg(locked.topic_id), array_agg(locked.partition), array_agg(locked.high_watermark),
           array_agg(locked.max_timestamp_ms), array_agg(locked.first_offset),
           array_agg(locked.first_unstable_offset)
    INTO found_topics, found_numbers, markers, newest, firsts, unstables_before
    FROM (
        SELECT p.topic_id, p.partition, p.high_watermark, p.max_timestamp_ms, t.first_offset,
            p.first_unstable_offset
        FROM transaction_partitions AS t JOIN partitions AS p USING (topic_id, partition)
        WHERE t.producer_id = of_producer AND t.first_offset IS NOT NULL AND p.state = 'live'
        ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p) AS locked;

    DELETE FROM transaction_partitions AS t WHERE t.producer_id = of_producer;
    DELETE FROM transaction_groups AS g WHERE g.producer_id = of_producer;

    IF cardinality(found_topics) > 0 THEN
        INSERT INTO segments (segment_id, object_key, size_bytes, state, writer, lease_until, committed_at,
            outcome)
        VALUES (marker_segment, marker_key, marker_bytes, 'committed', 'transaction', clock_timestamp(),
            clock_timestamp(), '{}');

        -- Without timestamps: no record has a marker's time, and its age is that of its segment.
        INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length, format,
                          min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
        SELECT found_topics[part], found_numbers[part], markers[part], markers[part], marker_segment, 0,
               marker_bytes, 'marker', -1, -1, newest[part]
        FROM generate_series(1, cardinality(found_topics)) AS part;

        -- From the one before on: the index holds many dead entries of transactions that ended before that.
        SELECT array_agg(coalesce((
            SELECT t.first_offset FROM transaction_partitions AS t
            WHERE t.topic_id = found_topics[part] AND t.partition = found_numbers[part]
                AND t.first_offset >= unstables_before[part]
            ORDER BY t.first_offset LIMIT 1), -1) ORDER BY part)
        INTO unstables
        FROM generate_series(1, cardinality(found_topics)) AS part;

        UPDATE partitions AS p SET high_watermark = p.high_watermark + 1,
               size_bytes = p.size_bytes + marker_bytes,
               first_unstable_offset = nullif(unstables[given.part], -1)
        FROM generate_series(1, cardinality(found_topics)) AS given (part)
        WHERE p.topic_id = found_topics[given.part] AND p.partition = found_numbers[given.part];

        IF NOT is_commit THEN
            INSERT INTO aborted_transactions (topic_id, partition, last_offset, first_offset, producer_id,
                stable_offset)
            SELECT found_topics[part], found_numbers[part], markers[part], firsts[part], of_producer,
                   CASE WHEN unstables[part] < 0 THEN markers[part] + 1 ELSE unstables[part] END
            FROM generate_series(1, cardinality(found_topics)) AS part;
        END IF;
    END IF;

    IF is_commit THEN
        INSERT INTO committed_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch,
            metadata)
        SELECT g.group_id, g.topic_id, g.partition, g.committed_offset, g.leader_epoch, g.metadata
        FROM (SELECT * FROM pending_offsets AS o WHERE o.producer_id = of_producer OFFSET 0) AS g
        WHERE EXISTS (SELECT FROM groups WHERE groups.group_id = g.group_id)
        ORDER BY g.group_id, g.topic_id, g.partition
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
            metadata = excluded.metadata,
            committed_at = excluded.committed_at;
    END IF;
    DELETE FROM pending_offsets AS o WHERE o.producer_id = of_producer;

    -- 32767, the last epoch, is only for fencing: a client goes on with another producer id before it.
    IF cause = 'client2' AND of_epoch >= 32766 THEN
        next_producer := new_producer_id();
        next_epoch := 0;
    ELSE
        next_producer := of_producer;
        next_epoch := CASE WHEN cause = 'client' THEN of_epoch ELSE least(of_epoch + 1, 32767) END;
    END IF;
    -- A producer that was fenced must not come back. One whose time ran out may.
    UPDATE transactions AS t SET producer_id = next_producer, producer_epoch = next_epoch, ended = new_end,
        changed_at = clock_timestamp(),
        last_producer_id = CASE cause WHEN 'fence' THEN -1 WHEN 'client' THEN last_producer
            ELSE of_producer END,
        last_producer_epoch = CASE cause WHEN 'fence' THEN -1 WHEN 'client' THEN last_epoch
            ELSE of_epoch END
    WHERE t.transactional_id = id;
    RETURN QUERY SELECT 0, next_producer, next_epoch, coalesce(found_topics, '{}'),
        coalesce(found_numbers, '{}'),
        coalesce(markers, '{}'), coalesce(firsts, '{}'), coalesce(unstables, '{}');
END
$function$;

-- end_transactions ends several transactions in one (see end_transaction). They share a round trip and a
-- flush of the log.
--
-- It locks the rows of all of them first, each kind in its order, so that two calls never wait for each
-- other. The order of the arrays does not matter.
--
-- Parameters: as of end_transaction, an element for each end. Returns a row for each, with its `place`
-- from 1.
CREATE FUNCTION end_transactions(
    ids text[], of_producers bigint[], of_epochs integer[], are_commits boolean[], causes text[],
    marker_segments uuid[], marker_keys text[], markers_bytes integer[])
RETURNS TABLE (place integer, verdict integer, producer_id bigint, producer_epoch integer, topic_ids uuid[],
    partition_numbers integer[], marker_offsets bigint[], first_offsets bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_hashagg = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    number integer;
BEGIN
    IF cardinality(ids) > 1 THEN
        PERFORM 1 FROM transactions AS t WHERE t.transactional_id = ANY (ids)
        ORDER BY t.producer_id FOR NO KEY UPDATE;

        PERFORM 1 FROM groups AS g
        WHERE g.group_id = ANY (ARRAY(SELECT o.group_id FROM pending_offsets AS o
            WHERE o.producer_id = ANY (of_producers)))
        ORDER BY g.group_id FOR NO KEY UPDATE;

        PERFORM 1 FROM (SELECT DISTINCT t.topic_id, t.partition FROM transaction_partitions AS t
            WHERE t.producer_id = ANY (of_producers) AND t.first_offset IS NOT NULL
            ORDER BY t.topic_id, t.partition) AS given
        CROSS JOIN LATERAL (SELECT 1 FROM partitions AS p
            WHERE p.topic_id = given.topic_id AND p.partition = given.partition FOR NO KEY UPDATE) AS own;
    END IF;
    FOR number IN 1..cardinality(ids) LOOP
        RETURN QUERY SELECT number, ended.* FROM end_transaction(
            ids[number], of_producers[number], of_epochs[number], are_commits[number], causes[number],
            marker_segments[number], marker_keys[number], markers_bytes[number]) AS ended;
    END LOOP;
END
$function$;

-- history_continues returns whether a job may add to the state that the history of a partition is: the last
-- record of each key. It may not where history has something else, or where records went that it has not
-- seen. Tombstones may be among them, and keys that are deleted would stay. `gone_before` are those that had
-- gone when the state was begun, `gone_to` those that have gone now.
CREATE FUNCTION history_continues(
    log_start bigint, compacted_to bigint, state_to bigint, gone_before bigint, gone_to bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT coalesce(state_to = compacted_to AND log_start <= compacted_to AND gone_before >= 0
        AND coalesce(gone_to, 0) <= greatest(compacted_to, gone_before), false)
$function$;

-- history_goes_on_at returns the offset from which on a partition's records are not in its history yet. The
-- history of a compacted topic (`is_state`) begins with the log again where it cannot continue.
CREATE FUNCTION history_goes_on_at(
    is_state boolean, log_start bigint, compacted_to bigint, state_to bigint, gone_before bigint,
    gone_to bigint
) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT CASE WHEN is_state
            AND NOT history_continues(log_start, compacted_to, state_to, gone_before, gone_to)
        THEN log_start ELSE greatest(compacted_to, log_start) END
$function$;

-- initialize_transaction gives a producer the id and epoch for a transactional id (InitProducerId). Producers
-- that had the transactional id before are fenced: their epoch is lower.
--
-- | parameter | meaning |
-- |---|---|
-- | id | the transactional id |
-- | with_timeout_ms | after which an open transaction is aborted |
-- | of_producer, of_epoch | what the producer has already (KIP-360), or -1: it starts |
--
-- Returns one row:
-- | column | meaning |
-- |---|---|
-- | verdict | 0 done; 1 fenced; 2 no such producer of this id; 4 one is open: abort it, and ask again |
-- | producer_id, producer_epoch | the producer's from now on; with verdict 4, those of the open one |
CREATE FUNCTION initialize_transaction(id text, with_timeout_ms integer, of_producer bigint, of_epoch integer)
RETURNS TABLE (verdict integer, producer_id bigint, producer_epoch integer)
LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_column
DECLARE
    own transactions%ROWTYPE;
    starts CONSTANT boolean := of_producer < 0;
    is_current boolean;
    is_repeat boolean;
    is_used_up boolean;
BEGIN
    SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    IF own.producer_id IS NULL THEN
        -- An id that was forgotten, or that another request is making now.
        INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms)
        VALUES (id, new_producer_id(), 0, with_timeout_ms) ON CONFLICT (transactional_id) DO NOTHING;
        IF FOUND THEN
            RETURN QUERY SELECT 0, t.producer_id, t.producer_epoch FROM transactions AS t
                WHERE t.transactional_id = id;
            RETURN;
        END IF;
        SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    END IF;

    is_current := own.producer_id = of_producer AND own.producer_epoch = of_epoch;
    is_repeat := own.last_producer_id = of_producer AND own.last_producer_epoch = of_epoch;
    IF NOT (starts OR is_current OR is_repeat) THEN
        RETURN QUERY SELECT CASE WHEN own.producer_id = of_producer OR own.last_producer_id = of_producer
            THEN 1 ELSE 2 END, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = own.producer_id)
        OR EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = own.producer_id) THEN
        RETURN QUERY SELECT 4, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;
    is_used_up := own.producer_epoch >= 32766;  -- 32767, the last epoch, is only for fencing
    IF is_repeat AND NOT is_current AND NOT starts AND own.producer_epoch < 32767 THEN
        -- What the producer's last request did already.
        RETURN QUERY SELECT 0, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;

    RETURN QUERY
    UPDATE transactions AS t SET
        producer_id = CASE WHEN is_used_up THEN new_producer_id() ELSE own.producer_id END,
        producer_epoch = CASE WHEN is_used_up THEN 0 ELSE own.producer_epoch + 1 END,
        last_producer_id = CASE WHEN starts THEN -1 ELSE of_producer END,
        last_producer_epoch = CASE WHEN starts THEN -1 ELSE of_epoch END,
        timeout_ms = with_timeout_ms, ended = NULL, changed_at = clock_timestamp()
    WHERE t.transactional_id = id
    RETURNING 0, t.producer_id, t.producer_epoch;
END
$function$;

-- kept_outcome returns the outcome of a segment whose row is gone. It is a function, so that the partitions
-- of `outcomes` are looked at only when it is called: once in a while, by a repeated commit.
CREATE FUNCTION kept_outcome(id uuid) RETURNS TABLE (object_key text, outcome bigint[])
LANGUAGE plpgsql STABLE
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT o.object_key, o.outcome FROM outcomes AS o WHERE o.segment_id = id LIMIT 1;
END
$function$;

-- matching_acls finds, for each of some filters, the ACLs that it selects. A null selects anything.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | types, patterns, names, principals, hosts, operations, permissions | filter | an ACL's columns |
-- | match | filter | true: names has a resource, and every pattern that applies to it is selected |
-- | within | filter | what the names of all selected ACLs begin with: a tenant's prefix,
--   or nothing; null: they are of no tenant |
CREATE FUNCTION matching_acls(
    types integer[], patterns integer[], match boolean[], names text[], principals text[], hosts text[],
    operations integer[], permissions integer[], within text[])
RETURNS TABLE (filter_number bigint, found acls)
LANGUAGE sql STABLE
AS $function$
    SELECT f.number, near.a
    FROM unnest(types, patterns, match, names, principals, hosts, operations, permissions, within)
        WITH ORDINALITY AS f (resource_type, pattern_type, is_match, name, principal, host, operation,
            permission, prefix, number)
    CROSS JOIN LATERAL (
        -- Of the index, only a tenant's range is read.
        SELECT acls AS a FROM acls
        WHERE f.prefix <> '' AND NOT is_removed AND left(name, 64) >= f.prefix COLLATE "C"
            AND left(name, 64) < (left(f.prefix, -1) || chr(127)) COLLATE "C"
        UNION ALL
        SELECT acls FROM acls
        WHERE coalesce(f.prefix, '') = '' AND NOT is_removed
            AND (f.prefix = '' OR name !~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?~')) AS near
    WHERE (f.resource_type IS NULL OR (near.a).resource_type = f.resource_type)
        AND (f.pattern_type IS NULL OR (near.a).pattern_type = f.pattern_type)
        AND (f.name IS NULL OR (near.a).name = f.name
            OR f.is_match AND ((near.a).pattern_type = 3 AND (near.a).name = coalesce(f.prefix, '') || '*'
                OR (near.a).pattern_type = 4 AND starts_with(f.name, (near.a).name)))
        AND (f.principal IS NULL OR (near.a).principal = f.principal)
        AND (f.host IS NULL OR (near.a).host = f.host)
        AND (f.operation IS NULL OR (near.a).operation = f.operation)
        AND (f.permission IS NULL OR (near.a).permission = f.permission)
$function$;

-- new_producer_id draws a producer id that was never given out. It says when it was given out, for
-- commit_segments. Ids run ahead of the clock, so that none is given out twice.
CREATE FUNCTION new_producer_id() RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
    UPDATE producer_ids
    SET last_id = greatest(last_id + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
    RETURNING last_id
$function$;

-- owns_bucket returns true if this database may change the bucket now: its ownership was confirmed within
-- two ratchets, by this Postgres, and is not lost (sequencer/cluster/ownership.py).
CREATE FUNCTION owns_bucket() RETURNS boolean LANGUAGE sql STABLE AS $function$
    SELECT coalesce((
        SELECT lost_because IS NULL AND confirmed_at <= clock_timestamp()
            AND confirmed_at + make_interval(secs => 2 * ratchet_s) > clock_timestamp()
            AND system_identifier = (SELECT system_identifier FROM pg_control_system())
            AND database_oid = (SELECT oid::bigint FROM pg_database WHERE datname = current_database())
            AND timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
            AND postmaster_started_at = pg_postmaster_start_time()
        FROM ownership), false)
$function$;

-- publish_merge replaces runs by the runs of a merged object, or of a part of it.
--
-- It first locks, in the one order: the output's row, then the partitions by primary key. The statements
-- after that take their snapshots later (VOLATILE, READ COMMITTED). So they see everything as the last
-- holder of those locks left it.
--
-- A swap replaces consecutive runs of one partition by runs of the same offsets. It is done if exactly the
-- runs that the merge has read are still there. Otherwise nothing of it is done: a partition that changed
-- meanwhile (retention, DeleteRecords, deletion, another merge) keeps what it has. The output must not be
-- doomed, and the job's hold on it must not have lapsed [raced]. The call may be repeated. A partition's
-- size changes only where records were erased: a merge keeps each byte of a run that it replaces.
--
-- All numbers count from 1.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | job | | the merge; it holds the output |
-- | output, output_bytes, output_tier | | the merged object's segment |
-- | newest | | when the newest of its inputs was committed |
-- | may_be_merged_again | | whether the output becomes a candidate of the next tier |
-- | topic_ids, partition_numbers | partition | the distinct partitions in primary-key order |
-- | swap_parts | swap | number of its partition |
-- | input_swaps | run that is replaced | number of its swap |
-- | input_base_offsets, input_segments, input_positions | run that is replaced | what names it |
-- | run_swaps | run that is made | number of its swap |
-- | run_base_offsets, run_last_offsets, run_positions, run_lengths | run that is made | its columns |
-- | run_min_timestamps, run_max_timestamps | run that is made | its columns |
--
-- Returns `state`: `published`, or why nothing was done: `missing`, `doomed`, `lapsed`. And `swaps`: the
-- numbers of the swaps that are done, now or by an earlier call.
CREATE FUNCTION publish_merge(
    job uuid, output uuid, output_bytes bigint, output_tier smallint, newest timestamptz,
        may_be_merged_again boolean,
    topic_ids uuid[], partition_numbers integer[], swap_parts integer[],
    input_swaps integer[], input_base_offsets bigint[], input_segments uuid[], input_positions bigint[],
    run_swaps integer[], run_base_offsets bigint[], run_last_offsets bigint[], run_positions bigint[],
    run_lengths bigint[],
    run_min_timestamps bigint[], run_max_timestamps bigint[])
RETURNS TABLE (state text, swaps integer[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by primary key: it must not be chosen while the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
    found_state text;
    is_whole boolean[];
    running_max bigint[];
    sizes bigint[];
BEGIN
    SELECT s.state INTO found_state FROM segments AS s WHERE s.segment_id = output FOR NO KEY UPDATE;
    IF found_state IS NULL OR found_state = 'doomed' THEN
        RETURN QUERY SELECT coalesce(found_state, 'missing'), '{}'::integer[];
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM holds AS h WHERE h.segment_id = output AND h.job_id = job
        AND h.lease_until > clock_timestamp()) THEN
        RETURN QUERY SELECT 'lapsed', '{}'::integer[];
        RETURN;
    END IF;
    PERFORM 1
    FROM unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
        JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition FOR NO KEY UPDATE OF p;

    SELECT array_agg(swap.is_whole ORDER BY swap.swap),
        array_agg(swap.running_max ORDER BY swap.swap), array_agg(swap.size_bytes ORDER BY swap.swap)
    INTO is_whole, running_max, sizes
    FROM (
        SELECT given.swap, bool_and(stored.base_offset IS NOT NULL) AS is_whole,
            max(stored.running_max_timestamp_ms) AS running_max, sum(stored.length) AS size_bytes
        FROM unnest(input_swaps, input_base_offsets, input_segments, input_positions)
             AS given (swap, base_offset, segment_id, position)
        LEFT JOIN LATERAL (
            SELECT r.base_offset, r.running_max_timestamp_ms, r.length FROM partitions AS p
                JOIN runs AS r USING (topic_id, partition)
            WHERE p.topic_id = topic_ids[swap_parts[given.swap]]
                AND p.partition = partition_numbers[swap_parts[given.swap]]
                AND p.state = 'live' AND r.base_offset = given.base_offset
                AND r.segment_id = given.segment_id
                    AND r.position = given.position OFFSET 0) AS stored ON true
        GROUP BY given.swap) AS swap;

    DELETE FROM runs AS r USING unnest(input_swaps, input_base_offsets) AS given (swap, base_offset)
    WHERE r.topic_id = topic_ids[swap_parts[given.swap]]
        AND r.partition = partition_numbers[swap_parts[given.swap]]
        AND r.base_offset = given.base_offset AND is_whole[given.swap];

    INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                      min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
    SELECT topic_ids[swap_parts[made.swap]], partition_numbers[swap_parts[made.swap]], made.base_offset,
           made.last_offset, output,
           made.position, made.length, made.min_timestamp_ms, made.max_timestamp_ms, running_max[made.swap]
    FROM unnest(run_swaps, run_base_offsets, run_last_offsets, run_positions, run_lengths,
         run_min_timestamps, run_max_timestamps)
         AS made (swap, base_offset, last_offset, position, length, min_timestamp_ms, max_timestamp_ms)
    WHERE is_whole[made.swap];

    UPDATE partitions AS p SET size_bytes = p.size_bytes + other.more
    FROM (
        SELECT swap_parts[swap.swap] AS part, sum(swap.size_bytes - sizes[swap.swap]) AS more
        FROM (SELECT made.swap, sum(made.length) AS size_bytes
            FROM unnest(run_swaps, run_lengths) AS made (swap, length) GROUP BY made.swap) AS swap
        WHERE is_whole[swap.swap]
        GROUP BY swap_parts[swap.swap]
    ) AS other
    WHERE p.topic_id = topic_ids[other.part] AND p.partition = partition_numbers[other.part]
        AND other.more <> 0;

    IF true = ANY (is_whole) AND found_state = 'reserved' THEN
        -- Its commit is that of the newest input: retention by time does not start again.
        UPDATE segments AS s SET state = 'committed', size_bytes = output_bytes, committed_at = newest,
            tier = output_tier
        WHERE s.segment_id = output;
        IF may_be_merged_again THEN
            INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes, claimed_by)
            VALUES (output, output_tier, newest, output_bytes, job);
        END IF;
    END IF;

    RETURN QUERY
    SELECT 'published', coalesce(array_agg(DISTINCT made.swap ORDER BY made.swap), '{}')
    FROM unnest(run_swaps, run_base_offsets, run_positions) AS made (swap, base_offset, position)
    CROSS JOIN LATERAL (
        SELECT 1 FROM runs AS r
        WHERE r.topic_id = topic_ids[swap_parts[made.swap]]
            AND r.partition = partition_numbers[swap_parts[made.swap]]
            AND r.base_offset = made.base_offset AND r.segment_id = output
                AND r.position = made.position OFFSET 0) AS stored;
END
$function$;

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

-- sequence_segments gives offsets to the batches of uploaded segments when nothing must be judged: every
-- segment is still reserved, every partition lives, every producer goes on where it left off, and every
-- transaction takes its batches. Nearly all
-- commits are so. The client has worked out everything relative to where each partition stands; this
-- function checks, adds and writes. Otherwise it calls commit_segments, under the same locks and in the
-- same transaction. Both decide the same commit alike (docs/design/commit.md).
--
-- It first locks, in the order of commit_segments: transactions, segments by id, then partitions by primary
-- key. It keeps the counters of the locked partitions' rows, which Postgres reads again after a wait. The
-- statements after it take their snapshots later, and so read everything else as it is under the locks
-- [raced].
--
-- A turn is all batches of a producer for a partition. All numbers count from 1. The first 18 parameters
-- are those of commit_segments.
--
-- | parameter | type | one entry per | meaning |
-- |---|---|---|---|
-- | part_records | bigint | partition | records that it gains |
-- | part_lengths | bigint | partition | bytes that it gains |
-- | part_max_timestamps | bigint | partition | the greatest timestamp |
-- | batch_starts | bigint | batch | records before it in its partition, in this commit |
-- | run_first_batches, run_last_batches | integer | run | its first and its last batch |
-- | run_min_timestamps, run_max_timestamps | bigint | run | its own |
-- | run_running_max_timestamps | bigint | run | the greatest of its partition in this commit so far |
-- | turn_heads | integer | turn | its first batch |
-- | turn_producers | bigint | turn | producer id |
-- | turn_epochs | integer | turn | producer epoch |
-- | turn_transactions | integer | turn | as chain_transactions; empty if all are 0 |
-- | turn_recent_from, turn_recent_to | integer | turn | its places in `recent_batches`, both included |
-- | recent_batches | integer | batch | of each turn the last ten at most, turn after turn |
--
-- No runs: the client knows that something must be judged.
--
-- Returns what commit_segments returns, and with each segment:
-- - `log_starts`: the log start offsets of the partitions in the order given; NULL if one of them does not
--   exist.
-- - `first_unstables`: their first unstable offsets after this commit, or -1; empty: no partition has one;
--   NULL: they are not those after this commit, because it is a repeat.
CREATE FUNCTION sequence_segments(
    segment_ids uuid[], segment_sizes bigint[],
    topic_ids uuid[], partition_numbers integer[],
    chain_parts integer[], chain_producers bigint[], chain_epochs integer[], chain_transactions integer[],
    batch_parts integer[], batch_segments integer[], batch_positions bigint[], batch_lengths integer[],
    batch_records integer[],
    batch_min_timestamps bigint[], batch_max_timestamps bigint[],
    batch_chains integer[], batch_members integer[], batch_sequences integer[],
    part_records bigint[], part_lengths bigint[], part_max_timestamps bigint[],
    batch_starts bigint[],
    run_first_batches integer[], run_last_batches integer[],
    run_min_timestamps bigint[], run_max_timestamps bigint[], run_running_max_timestamps bigint[],
    turn_heads integer[], turn_producers bigint[], turn_epochs integer[],
    turn_transactions integer[], turn_recent_from integer[], turn_recent_to integer[],
    recent_batches integer[])
RETURNS TABLE (state text, object_key text, outcome bigint[], log_starts bigint[], first_unstables bigint[])
LANGUAGE plpgsql VOLATILE
-- One plan for ever, made of look-ups by primary key: it must not be chosen again for each call, nor while
-- the tables are small.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_memoize = off
AS $function$
#variable_conflict use_column
DECLARE
    part_rows tid[];
    watermarks bigint[];
    starts bigint[];
    newest_before bigint[];
    turn_rows tid[];
    in_turn boolean;
    is_first boolean;
    unstables bigint[];
    opening integer[];
    timeouts_ms integer[];
    changed_rows bigint;
BEGIN
    IF cardinality(chain_transactions) > 0 THEN
        PERFORM 1
        FROM (SELECT DISTINCT number AS producer_id FROM unnest(chain_producers) AS number
            ORDER BY number) AS given
        CROSS JOIN LATERAL (
            SELECT 1 FROM transactions AS t WHERE t.producer_id = given.producer_id FOR SHARE) AS own;
    END IF;
    SELECT count(*) FILTER (WHERE locked.state = 'reserved') = cardinality(segment_ids) INTO is_first
    FROM (SELECT s.state FROM segments AS s WHERE s.segment_id = ANY (segment_ids)
        ORDER BY s.segment_id FOR NO KEY UPDATE) AS locked;

    IF cardinality(topic_ids) > 1 THEN
        -- After a wait, every other row would have changed since the statement began, and Postgres would read
        -- each a second time.
        PERFORM 1 FROM partitions WHERE topic_id = topic_ids[1]
            AND partition = partition_numbers[1] FOR NO KEY UPDATE;
    END IF;
    SELECT array_agg(locked.row), array_agg(locked.high_watermark), array_agg(locked.max_timestamp_ms),
           CASE WHEN count(*) = cardinality(topic_ids) THEN array_agg(locked.log_start_offset) END,
           is_first AND cardinality(run_first_batches) > 0
           AND count(*) FILTER (WHERE locked.state = 'live') = cardinality(topic_ids),
           CASE WHEN cardinality(chain_transactions) > 0 OR count(locked.first_unstable_offset) > 0
                THEN array_agg(coalesce(locked.first_unstable_offset, -1)) ELSE '{}' END
    INTO part_rows, watermarks, newest_before, starts, in_turn, unstables
    FROM (
        SELECT p.* FROM generate_series(1, cardinality(topic_ids)) AS given (part) CROSS JOIN LATERAL (
            SELECT ctid AS row, high_watermark, log_start_offset, max_timestamp_ms,
                first_unstable_offset, state
            FROM partitions
            WHERE topic_id = topic_ids[given.part]
                AND partition = partition_numbers[given.part] FOR NO KEY UPDATE) AS p) AS locked;

    IF in_turn AND cardinality(turn_heads) > 0 THEN
        -- Without a state only sequence 0 begins one; with one, the next is what follows it in the same
        -- epoch.
        SELECT bool_and(CASE WHEN stored.row IS NULL THEN given.sequence = 0
                             ELSE given.sequence = stored.next_sequence
                                 AND given.producer_epoch = stored.producer_epoch END),
               array_agg(stored.row)
        INTO in_turn, turn_rows
        FROM (
            SELECT batch_parts[turn_heads[turn]] AS part, batch_sequences[turn_heads[turn]] AS sequence,
                   turn_producers[turn] AS producer_id, turn_epochs[turn] AS producer_epoch
            FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
        LEFT JOIN LATERAL (
            SELECT s.ctid AS row, s.producer_epoch,
                (s.sequences[cardinality(s.sequences)] + 1) & 2147483647 AS next_sequence
            FROM producer_state AS s
            WHERE s.topic_id = topic_ids[given.part] AND s.partition = partition_numbers[given.part]
              AND s.producer_id = given.producer_id OFFSET 0) AS stored ON true;
    END IF;
    IF in_turn AND cardinality(turn_transactions) > 0 THEN
        -- `opening`: the turns that are the first of their transactions in a partition.
        SELECT bool_and(coalesce(transaction.producer_epoch = turn_epochs[given.turn], false)
                AND (turn_transactions[given.turn] = 2 OR added.producer_id IS NOT NULL)),
            array_agg(given.turn) FILTER (WHERE added.first_offset IS NULL),
            array_agg(transaction.timeout_ms) FILTER (WHERE added.first_offset IS NULL)
        INTO in_turn, opening, timeouts_ms
        FROM (SELECT turn, batch_parts[turn_heads[turn]] AS part
            FROM generate_series(1, cardinality(turn_heads)) AS turn
            WHERE turn_transactions[turn] > 0 OFFSET 0) AS given
        LEFT JOIN LATERAL (
            SELECT t.producer_epoch, t.timeout_ms FROM transactions AS t
            WHERE t.producer_id = turn_producers[given.turn] OFFSET 0) AS transaction ON true
        LEFT JOIN LATERAL (
            SELECT t.producer_id, t.first_offset FROM transaction_partitions AS t
            WHERE t.producer_id = turn_producers[given.turn] AND t.topic_id = topic_ids[given.part]
                AND t.partition = partition_numbers[given.part] OFFSET 0) AS added ON true;
    END IF;
    IF NOT in_turn THEN
        RETURN QUERY SELECT judged.state, judged.object_key, judged.outcome, starts,
            CASE WHEN is_first THEN unstable_offsets(topic_ids, partition_numbers) END
        FROM commit_segments(
            segment_ids, segment_sizes, topic_ids, partition_numbers, chain_parts, chain_producers,
                chain_epochs, chain_transactions,
            batch_parts, batch_segments, batch_positions, batch_lengths, batch_records, batch_min_timestamps,
            batch_max_timestamps,
            batch_chains, batch_members, batch_sequences) AS judged;
        RETURN;
    END IF;

    UPDATE partitions AS p SET high_watermark = p.high_watermark + part_records[given.part],
           size_bytes = p.size_bytes + part_lengths[given.part],
           max_timestamp_ms = greatest(p.max_timestamp_ms, part_max_timestamps[given.part])
    FROM generate_series(1, cardinality(topic_ids)) AS given (part)
    WHERE p.ctid = part_rows[given.part];
    GET DIAGNOSTICS changed_rows = ROW_COUNT;
    ASSERT changed_rows = cardinality(topic_ids), 'a locked partition was not where it had been locked';

    INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                      min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
    SELECT topic_ids[given.part], partition_numbers[given.part],
           watermarks[given.part] + batch_starts[given.first],
           watermarks[given.part] + batch_starts[given.last] + batch_records[given.last] - 1,
           segment_ids[batch_segments[given.first]], batch_positions[given.first],
           batch_positions[given.last] + batch_lengths[given.last] - batch_positions[given.first],
           run_min_timestamps[given.run], run_max_timestamps[given.run],
           greatest(newest_before[given.part], run_running_max_timestamps[given.run])
    FROM (
        SELECT run, run_first_batches[run] AS first, run_last_batches[run] AS last,
            batch_parts[run_first_batches[run]] AS part
        FROM generate_series(1, cardinality(run_first_batches)) AS run OFFSET 0) AS given;

    IF cardinality(turn_heads) > 0 THEN
        -- The last ten accepted batches are remembered. Mostly a turn is one batch, which needs no look at a
        -- list.
        IF cardinality(recent_batches) = cardinality(turn_heads) THEN
            UPDATE producer_state AS s
            SET sequences = s.sequences[cardinality(s.sequences) - 8:]
                    || ARRAY[
                    given.sequence << 31 | ((given.sequence + batch_records[given.batch] - 1) & 2147483647)],
                base_offsets = s.base_offsets[cardinality(s.base_offsets) - 8:]
                    || ARRAY[watermarks[given.part] + batch_starts[given.batch]],
                max_timestamps = s.max_timestamps[cardinality(s.max_timestamps) - 8:]
                    || ARRAY[batch_max_timestamps[given.batch]],
                updated_at = clock_timestamp()
            FROM (
                SELECT turn_rows[turn] AS row, turn_heads[turn] AS batch,
                       batch_parts[turn_heads[turn]] AS part,
                       batch_sequences[turn_heads[turn]]::bigint AS sequence
                FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
            WHERE s.ctid = given.row;
        ELSE
            UPDATE producer_state AS s
            SET sequences = s.sequences[cardinality(s.sequences) + given.batches - 9:]
                    || ARRAY(
                    SELECT recent.sequence << 31 | ((recent.sequence + recent.records - 1) & 2147483647)
                    FROM (
                        SELECT batch_sequences[recent_batches[place]]::bigint AS sequence,
                            batch_records[recent_batches[place]] AS records
                        FROM generate_series(given.recent_from,
                            given.recent_to) AS place OFFSET 0) AS recent),
                base_offsets = s.base_offsets[cardinality(s.base_offsets) + given.batches - 9:]
                    || ARRAY(
                    SELECT watermarks[given.part] + batch_starts[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                max_timestamps = s.max_timestamps[cardinality(s.max_timestamps) + given.batches - 9:]
                    || ARRAY(
                    SELECT batch_max_timestamps[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                updated_at = clock_timestamp()
            FROM (
                SELECT turn_rows[turn] AS row, batch_parts[turn_heads[turn]] AS part,
                       turn_recent_from[turn] AS recent_from, turn_recent_to[turn] AS recent_to,
                       turn_recent_to[turn] - turn_recent_from[turn] + 1 AS batches
                FROM generate_series(1, cardinality(turn_heads)) AS turn OFFSET 0) AS given
            WHERE s.ctid = given.row;
        END IF;
        GET DIAGNOSTICS changed_rows = ROW_COUNT;
        ASSERT changed_rows = cardinality(turn_heads) - cardinality(array_positions(turn_rows, NULL)),
            'a producer was written by another';

        IF changed_rows < cardinality(turn_heads) THEN
            INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences,
                base_offsets, max_timestamps)
            SELECT topic_ids[given.part], partition_numbers[given.part], given.producer_id,
                    given.producer_epoch, ARRAY(
                    SELECT recent.sequence << 31 | ((recent.sequence + recent.records - 1) & 2147483647)
                    FROM (
                        SELECT batch_sequences[recent_batches[place]]::bigint AS sequence,
                            batch_records[recent_batches[place]] AS records
                        FROM generate_series(given.recent_from,
                            given.recent_to) AS place OFFSET 0) AS recent),
                ARRAY(
                    SELECT watermarks[given.part] + batch_starts[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place),
                ARRAY(
                    SELECT batch_max_timestamps[recent_batches[place]]
                    FROM generate_series(given.recent_from, given.recent_to) AS place)
            FROM (
                SELECT batch_parts[turn_heads[turn]] AS part, turn_producers[turn] AS producer_id,
                       turn_epochs[turn] AS producer_epoch,
                       turn_recent_from[turn] AS recent_from, turn_recent_to[turn] AS recent_to
                FROM generate_series(1, cardinality(turn_heads)) AS turn
                WHERE turn_rows[turn] IS NULL OFFSET 0) AS given;
        END IF;
    END IF;

    IF cardinality(opening) > 0 THEN
        INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset, expires_at)
        SELECT turn_producers[given.turn], topic_ids[given.part], partition_numbers[given.part],
               watermarks[given.part] + batch_starts[given.batch],
               clock_timestamp() + make_interval(secs => given.timeout_ms / 1000.0)
        FROM (SELECT turn, timeout_ms, turn_heads[turn] AS batch, batch_parts[turn_heads[turn]] AS part
            FROM unnest(opening, timeouts_ms) AS opened (turn, timeout_ms) OFFSET 0) AS given
        ORDER BY turn_producers[given.turn], topic_ids[given.part], partition_numbers[given.part]
        ON CONFLICT (producer_id, topic_id, partition) DO UPDATE SET first_offset = excluded.first_offset;

        UPDATE partitions AS p SET first_unstable_offset = given.first_offset
        FROM (SELECT batch_parts[turn_heads[turn]] AS part,
                min(watermarks[batch_parts[turn_heads[turn]]] + batch_starts[turn_heads[turn]])
                    AS first_offset
            FROM unnest(opening) AS turn GROUP BY batch_parts[turn_heads[turn]] OFFSET 0) AS given
        WHERE p.topic_id = topic_ids[given.part] AND p.partition = partition_numbers[given.part]
            AND p.first_unstable_offset IS NULL;
        unstables := unstable_offsets(topic_ids, partition_numbers);
    END IF;

    IF cardinality(segment_ids) = 1 THEN
        RETURN QUERY
        UPDATE segments AS s SET state = 'committed', size_bytes = segment_sizes[1],
            committed_at = clock_timestamp(), outcome = ARRAY(
            SELECT 8 * (watermarks[batch_parts[batch]] + batch_starts[batch])
                FROM generate_series(1, cardinality(batch_parts)) AS batch)
        WHERE s.segment_id = segment_ids[1]
        RETURNING s.state, s.object_key, s.outcome, starts, unstables;
        RETURN;
    END IF;
    RETURN QUERY
    WITH decided AS MATERIALIZED (
        SELECT batch_segments[batch] AS segment,
            array_agg(8 * (watermarks[batch_parts[batch]] + batch_starts[batch]) ORDER BY batch) AS outcome
        FROM generate_series(1, cardinality(batch_parts)) AS batch GROUP BY batch_segments[batch]
    ), committed AS (
        UPDATE segments AS s SET state = 'committed', size_bytes = segment_sizes[decided.segment],
               committed_at = clock_timestamp(),
               outcome = decided.outcome
        FROM decided WHERE s.segment_id = segment_ids[decided.segment]
        RETURNING decided.segment, s.object_key, s.outcome
    )
    SELECT 'committed', committed.object_key, committed.outcome, starts, unstables FROM committed
        ORDER BY committed.segment;
END
$function$;

-- show_agents compares the leases of agents with what is shown of them, unless that was done in the last
-- `not_older_than_s` seconds. So the leases are read once in that time, however many agents ask.
--
-- It locks the row of agents_shown until the end, so changes become visible in the order of their numbers.
-- It leaves a row of agents that another transaction has locked to the next call: a join that waits for a
-- standby delays nothing here.
CREATE FUNCTION show_agents(not_older_than_s double precision) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    began timestamptz;
    number bigint;
BEGIN
    SELECT s.changes + 1 INTO number FROM agents_shown AS s
    -- A look in the future is from before the clock was set back.
    WHERE s.looked_at NOT BETWEEN clock_timestamp() - make_interval(secs => not_older_than_s)
        AND clock_timestamp()
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    began := clock_timestamp();
    WITH other AS MATERIALIZED (
        SELECT a.node_id, CASE WHEN a.lease_until > began THEN a.incarnation END AS incarnation
            FROM agents AS a
        WHERE a.shown IS DISTINCT FROM CASE WHEN a.lease_until > began THEN a.incarnation END
        ORDER BY a.node_id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE agents AS a SET shown = other.incarnation, change = number FROM other
        WHERE a.node_id = other.node_id;
    IF NOT FOUND THEN
        number := number - 1;
    END IF;
    UPDATE agents_shown SET changes = number, looked_at = began,
        alive = (SELECT count(a.shown) FROM agents AS a);
END
$function$;

-- unstable_offsets reads the first unstable offset of each partition, -1 for none, in the order given. A
-- partition that does not exist counts as having none.
CREATE FUNCTION unstable_offsets(topic_ids uuid[], partition_numbers integer[]) RETURNS bigint[]
LANGUAGE sql VOLATILE
AS $function$
    SELECT array_agg(coalesce((
        SELECT p.first_unstable_offset FROM partitions AS p
        WHERE p.topic_id = given.topic_id AND p.partition = given.number), -1) ORDER BY given.place)
    FROM unnest(topic_ids, partition_numbers) WITH ORDINALITY AS given (topic_id, number, place)
$function$;

-- write_group writes what a coordinator changed in a group and its members. It returns false, and writes
-- nothing, if another agent has claimed the group. Statement 1 takes the row, so the next ones see the
-- members as they are.
--
-- | parameter | one entry per | meaning |
-- |---|---|---|
-- | written_group | | the group's id |
-- | held_epoch | | the epoch with which the coordinator claimed the group |
-- | new_kind, new_generation, new_state, new_protocol_type, new_document | | the group's new columns |
-- | is_empty | | the group has no members now |
-- | removed_ids | member that left | its id |
-- | member_ids, member_epochs, member_documents | member that changed | its new columns |
CREATE FUNCTION write_group(
    written_group text, held_epoch bigint, new_kind text, new_generation integer, new_state text,
        new_protocol_type text,
    new_document json, is_empty boolean, removed_ids text[], member_ids text[], member_epochs integer[],
    member_documents text[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    UPDATE groups SET kind = new_kind, generation = new_generation, state = new_state,
           protocol_type = new_protocol_type,
           document = new_document,
           empty_since = CASE WHEN is_empty THEN coalesce(empty_since, clock_timestamp()) END
    WHERE group_id = written_group AND coordinator_epoch = held_epoch;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM group_members WHERE group_id = written_group AND member_id = ANY (removed_ids);
    INSERT INTO group_members AS m (group_id, member_id, epoch, document)
    SELECT written_group, given.member_id, given.epoch, given.document::json
    FROM unnest(member_ids, member_epochs, member_documents) AS given (member_id, epoch, document)
    ON CONFLICT (group_id, member_id) DO UPDATE SET epoch = excluded.epoch, document = excluded.document;
    RETURN true;
END
$function$;

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
