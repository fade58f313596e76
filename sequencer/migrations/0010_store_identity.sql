-- Which store holds the objects that this database names: the id in its identity object, and how the first agent reached it (for messages alone).
-- Null until an agent has started (sequencer/store_identity.py).
ALTER TABLE cluster ADD COLUMN store_id text, ADD COLUMN store_name text;
