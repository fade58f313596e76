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
