"""`python -m tidelog.fetch_jars`: fetches the jars that Spark needs into Ivy's local cache.

An image that ran it when it was built starts Spark without a network.
"""

from spark_compaction.session import spark_session, stop_spark
from spark_compaction.settings import CompactionSettings
from tidelog.process.environment import Environment

if __name__ == "__main__":
    spark_session(Environment.of_process().read(CompactionSettings))
    stop_spark()
