-- Work for the whole cluster is done by one agent, and its cost does not grow with the number of agents.

-- What the observer last measured (sequencer/observations.py). One row: an older measurement never replaces a newer one.
CREATE TABLE observation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    observed_at timestamptz NOT NULL,
    seen jsonb NOT NULL
) WITH (fillfactor = 50);

-- What is ripe for merging. Claimed candidates are not in it, so neither a look at the backlog nor a claim walks over those of other agents.
DROP INDEX merge_candidates_in_order;
CREATE INDEX merge_candidates_ripe ON merge_candidates (tier, committed_at, segment_id) INCLUDE (size_bytes) WHERE claimed_by IS NULL;
CREATE INDEX merge_candidates_claimed ON merge_candidates (claimed_by) INCLUDE (segment_id) WHERE claimed_by IS NOT NULL;

-- Who is alive, as all agents are shown it. An agent asks only for what changed since it last looked.
-- shown: the incarnation that others are shown, null if none is. change: the number of the change that set it. Renewals touch neither.
ALTER TABLE agents ADD COLUMN shown bigint, ADD COLUMN change bigint NOT NULL DEFAULT 0;
CREATE TABLE agents_shown (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0,
    alive integer NOT NULL DEFAULT 0,
    looked_at timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);
INSERT INTO agents_shown DEFAULT VALUES;

-- show_agents: compares leases with what is shown, unless that was done less than `not_older_than_s` ago. So however many agents ask, the
-- leases are read once in that time.
--
-- The row of agents_shown is locked until the end, so changes become visible in the order of their numbers. A row of agents that another
-- transaction has locked is left for the next call: a join that waits for a standby holds up nothing here.
CREATE FUNCTION show_agents(not_older_than_s double precision) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    began timestamptz;
    number bigint;
BEGIN
    SELECT s.changes + 1 INTO number FROM agents_shown AS s
    -- A look in the future is from before the clock was set back.
    WHERE s.looked_at NOT BETWEEN clock_timestamp() - make_interval(secs => not_older_than_s) AND clock_timestamp()
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    began := clock_timestamp();
    WITH other AS MATERIALIZED (
        SELECT a.node_id, CASE WHEN a.lease_until > began THEN a.incarnation END AS incarnation FROM agents AS a
        WHERE a.shown IS DISTINCT FROM CASE WHEN a.lease_until > began THEN a.incarnation END
        ORDER BY a.node_id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE agents AS a SET shown = other.incarnation, change = number FROM other WHERE a.node_id = other.node_id;
    IF NOT FOUND THEN
        number := number - 1;
    END IF;
    UPDATE agents_shown SET changes = number, looked_at = began, alive = (SELECT count(a.shown) FROM agents AS a);
END
$function$;
