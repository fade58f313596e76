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
