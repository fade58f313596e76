"""Fixtures of the suite; each real part (Postgres, an S3 endpoint, a stack, Java) is a module of `tests/fixtures`."""

pytest_plugins = [
    "tests.fixtures.balancer",
    "tests.fixtures.postgres",
    "tests.fixtures.s3",
    "tests.fixtures.minio",
    "tests.fixtures.stack",
    "tests.fixtures.java",
    "tests.clients.matrix_plugin",
]
