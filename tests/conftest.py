"""Fixtures of the suite; each real part (Postgres, an S3 endpoint, a stack, Java) is a module of `tests/fixtures`."""

from hypothesis import HealthCheck, settings

# How long an example takes, and how long one to make, says more about the machine than about the code.
settings.register_profile("tidelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidelog")

pytest_plugins = [
    "tests.fixtures.balancer",
    "tests.fixtures.postgres",
    "tests.fixtures.replication",
    "tests.fixtures.s3",
    "tests.fixtures.minio",
    "tests.fixtures.stack",
    "tests.fixtures.java",
    "tests.fixtures.spark",
    "tests.fixtures.schedule",
    "tests.clients.matrix_plugin",
]
