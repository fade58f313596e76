"""The table of a topic through the Iceberg catalog that every agent serves, without Spark and without
Tidelog's code.

Run history_by_spark.py first: it makes the table.
"""

import os

from pyiceberg.catalog.rest import RestCatalog
from stack_store import stack_store

HTTP_URL = os.environ.get("TIDELOG_HTTP_URL", "http://localhost:8080")
TOPIC = "example_flights"


def main() -> None:
    catalog = RestCatalog("tidelog", uri=f"{HTTP_URL}/iceberg", **stack_store())
    table = catalog.load_table(("topics", TOPIC))
    print("columns:", ", ".join(field.name for field in table.schema().fields))
    # Only the files and row groups that can have such records are read.
    few = table.scan(row_filter="offset < 5", selected_fields=("partition", "offset", "value")).to_arrow()
    for row in few.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
        print(f"{row['partition']}/{row['offset']}: {row['value'].decode()}")


if __name__ == "__main__":
    main()
