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
