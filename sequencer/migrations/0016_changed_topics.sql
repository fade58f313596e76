-- Which topics were made, changed or deleted by each counted change: an agent forgets those, and nothing else.
--
-- The counter's row is locked until its transaction ends, so numbers become visible in their order: whoever sees a number sees all up to it. Every
-- number has at least one row, so a reader can tell that rows it lacks are gone. The last thousand numbers are kept.
CREATE TABLE changed_topics (
    change bigint,
    topic_id uuid,
    name text NOT NULL,
    PRIMARY KEY (change, topic_id)
);

CREATE OR REPLACE FUNCTION count_topic_change() RETURNS trigger LANGUAGE plpgsql AS $function$
DECLARE
    number bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM changed) THEN
        RETURN NULL;
    END IF;
    UPDATE topic_changes SET changes = changes + 1 RETURNING changes INTO number;
    -- A database that is loaded from the journal takes over the counter, too, and may count a number twice. Then the counter leaps, and agents forget all.
    INSERT INTO changed_topics (change, topic_id, name) SELECT number, topic_id, name FROM changed ON CONFLICT DO NOTHING;
    DELETE FROM changed_topics WHERE change <= number - 1000;
    RETURN NULL;
END
$function$;

-- A trigger of two events cannot name the rows that it is for.
DROP TRIGGER topics_changed ON topics;
CREATE TRIGGER topics_made AFTER INSERT ON topics REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_topic_change();
CREATE TRIGGER topics_changed AFTER UPDATE ON topics REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_topic_change();
