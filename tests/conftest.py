"""Fixtures of the suite. Each real part (Postgres, an S3 endpoint, a stack, Java) is a module of
`tests/support`.
"""

from hypothesis import HealthCheck, settings

# The time to make and run an example says more about the machine than about the code.
settings.register_profile("tidelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidelog")

pytest_plugins = [
    "tests.support.secret_watch",
    "tests.support.balancer",
    "tests.support.postgres",
    "tests.support.replication",
    "tests.support.s3",
    "tests.support.minio",
    "tests.support.vault",
    "tests.support.stack",
    "tests.support.java",
    "tests.support.spark",
    "tests.support.schedule",
    "tests.clients.matrix_plugin",
]
