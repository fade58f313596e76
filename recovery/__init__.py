"""Recovery: a database and a bucket that drifted apart belong together again (DESIGN §10, Restore)."""
