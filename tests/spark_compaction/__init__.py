"""Spark compaction on a real Postgres, a real S3 endpoint and a real Spark."""
