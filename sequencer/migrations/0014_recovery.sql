-- Recovery (DESIGN §10, Restore): offsets that were acknowledged once and that no object holds any more.
--
-- The log keeps their place: an empty batch spans each range, so that consumers skip it. This table says why. A row goes when
-- retention has passed its range, or with its topic.
CREATE TABLE gone_ranges (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    reason text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, base_offset)
);

-- Set while a database that was loaded from the journal is being recovered: the moment of its producers' states.
ALTER TABLE journal ADD COLUMN recovering_producers_since timestamptz;
