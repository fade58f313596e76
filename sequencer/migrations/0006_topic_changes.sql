-- How often topics were made, changed or deleted: an agent that sees another number than before looks up afresh what it knows of topics.
--
-- Counted in the transaction of the change, so that whoever sees the number sees the change. The trigger fires when the statement has its
-- topic rows: in the lock order the counter comes right after topics, and nobody who holds it waits for a topic.
CREATE TABLE topic_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO topic_changes DEFAULT VALUES;

CREATE FUNCTION count_topic_change() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    UPDATE topic_changes SET changes = changes + 1;
    RETURN NULL;
END
$function$;

CREATE TRIGGER topics_changed AFTER INSERT OR UPDATE ON topics FOR EACH STATEMENT EXECUTE FUNCTION count_topic_change();
