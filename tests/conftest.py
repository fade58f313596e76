"""Fixtures of the whole suite; each real part (Postgres, an S3 endpoint, a stack) has a module of its own in `tests/fixtures`."""

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.s3", "tests.fixtures.stack", "tests.fixtures.java"]
