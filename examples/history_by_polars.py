"""The table of a topic as a lazy frame of Polars. PyIceberg reads the columns that it needs.

Run history_by_spark.py first: it makes the table.
"""

import os

import polars as pl
from pyiceberg.catalog.rest import RestCatalog
from stack_store import stack_store

HTTP_URL = os.environ.get("TIDELOG_HTTP_URL", "http://localhost:8080")
TOPIC = "example_flights"
FLIGHT = pl.Struct({"to": pl.String, "delay_min": pl.Int64})


def main() -> None:
    catalog = RestCatalog("tidelog", uri=f"{HTTP_URL}/iceberg", **stack_store())
    table = catalog.load_table(("topics", TOPIC))
    flights = pl.scan_iceberg(table, reader_override="pyiceberg").select(
        pl.col("value").cast(pl.String).str.json_decode(FLIGHT).struct.unnest()
    )
    delays = flights.group_by("to").agg(pl.len(), pl.col("delay_min").mean().round(1)).sort("to").collect()
    print(f"{delays['len'].sum()} flights to {len(delays)} airports")
    print(delays)


if __name__ == "__main__":
    main()
