"""Spark's own Kafka source (`spark-sql-kafka-0-10`), whose jars come from Maven Central by name, once."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.support.maven import retrieve

JARS: Final = Path(__file__).parents[2] / ".cache" / "spark-kafka" / "jars"
_MODULES: Final = Path(__file__).with_name("spark_kafka.xml")


def add_kafka_source(session: SparkSession) -> None:
    for jar in sorted(retrieve(_MODULES, JARS).glob("*.jar")):
        session.sql(f"ADD JAR '{jar}'")
