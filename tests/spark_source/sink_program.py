"""A Spark driver as a process, which copies one topic into another and ends: `python -m
tests.spark_source.sink_program '{"conf": ..., "source": ..., ...}'`.
"""

import json
import sys

from pyspark.sql import SparkSession

from tests.spark_source.sources_that_fail import DyingSource, FailingSource


def main() -> None:
    asked = json.loads(sys.argv[1])
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    for name, value in {"spark.driver.host": "127.0.0.1", **asked["conf"]}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for source in (DyingSource, FailingSource):
        session.dataSource.register(source)
    rows = (
        session.readStream.format("tidelog").options(columns="partition,key,value", **asked["reader"]).load()
    )
    query = (
        rows.writeStream.format(asked["source"])
        .options(**asked["writer"])
        .option("checkpointLocation", asked["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
