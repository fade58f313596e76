"""DuckDB's SQL over the table of a topic. PyIceberg plans which files and columns a statement needs.

Run history_by_spark.py first: it makes the table.
"""

import os

from pyiceberg.catalog.rest import RestCatalog
from stack_store import stack_store

HTTP_URL = os.environ.get("TIDELOG_HTTP_URL", "http://localhost:8080")
TOPIC = "example_flights"
ASKED = """
    SELECT json ->> '$.to' AS destination, round(avg((json ->> '$.delay_min')::int), 1) AS delay_min, count(*)
    FROM (SELECT decode(value)::json AS json FROM flights)
    GROUP BY ALL ORDER BY ALL
"""


def main() -> None:
    catalog = RestCatalog("tidelog", uri=f"{HTTP_URL}/iceberg", **stack_store())
    table = catalog.load_table(("topics", TOPIC))
    database = table.scan(selected_fields=("value",)).to_duckdb("flights")
    found = database.sql(ASKED).fetchall()
    print(f"{sum(count for *_, count in found)} flights to {len(found)} airports")
    for destination, delay, _ in found:
        print(f"{destination}  {delay}")


if __name__ == "__main__":
    main()
