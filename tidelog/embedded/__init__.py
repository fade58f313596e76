"""The development stack from wheels: Postgres and an S3 endpoint, started and stopped by this process."""
