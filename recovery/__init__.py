"""Recovery: makes one log of a database and a bucket that drifted apart (docs/design/recovery.md#recover)."""
