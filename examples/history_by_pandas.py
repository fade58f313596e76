"""The Parquet files of a topic in pandas. The catalog says which files the table has now. A listing would
also find files of failed jobs, and files that newer ones replaced.

Run history_by_spark.py first: it makes the table.
"""

import json
import os

import pandas as pd
from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.catalog.rest import RestCatalog
from stack_store import stack_store

HTTP_URL = os.environ.get("TIDELOG_HTTP_URL", "http://localhost:8080")
TOPIC = "example_flights"


def main() -> None:
    store = stack_store()
    table = RestCatalog("tidelog", uri=f"{HTTP_URL}/iceberg", **store).load_table(("topics", TOPIC))
    files = [task.file.file_path for task in table.scan().plan_files()]
    frames = [read(file, store) for file in files]
    flights = pd.DataFrame(json.loads(value) for value in pd.concat(frames)["value"])
    print(f"{len(flights)} flights in {len(files)} files")
    print(flights.groupby("to")["delay_min"].mean().round(1).to_string())


def read(file: str, store: dict[str, str]) -> pd.DataFrame:
    if store:
        reads: FileSystem = S3FileSystem(
            endpoint_override=store["s3.endpoint"],
            access_key=store["s3.access-key-id"],
            secret_key=store["s3.secret-access-key"],
        )
        return pd.read_parquet(file.removeprefix("s3://"), filesystem=reads, columns=["value"])
    return pd.read_parquet(file, columns=["value"])


if __name__ == "__main__":
    main()
