"""Recovery: makes one log of a database and a bucket that drifted apart (DESIGN §10, Restore)."""
