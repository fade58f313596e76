"""A stack on this machine: Postgres, S3 endpoint, agents."""
