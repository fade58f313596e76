"""The sequencer on a real Postgres: single claims, races, and a random history against a model."""
