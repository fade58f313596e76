"""The sequencer on a real Postgres: claims, races, and a state machine against a model."""
