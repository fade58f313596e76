"""A topic becomes a table: compact it into Parquet, then ask Spark SQL. The first run fetches Spark's
jars.
"""

import json
import os
import subprocess

from confluent_kafka import Producer

BOOTSTRAP = os.environ.get("TIDELOG_BOOTSTRAP", "localhost:9092")
TOPIC = "example_flights"


def main() -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(300):
        flight = {"to": ("OSL", "BER", "PRG")[number % 3], "delay_min": number % 40}
        producer.produce(TOPIC, key=flight["to"], value=json.dumps(flight))
    producer.flush(30)

    # A job that you schedule. It reads what is not in history yet, and publishes it as one new snapshot.
    subprocess.run(["tidelog", "compact", TOPIC], check=True)
    query = f"""
        SELECT get_json_object(CAST(value AS STRING), '$.to') AS destination,
               count(*) AS flights,
               round(avg(get_json_object(CAST(value AS STRING), '$.delay_min')), 1) AS mean_delay
        FROM topics.{TOPIC} GROUP BY 1 ORDER BY 1"""
    subprocess.run(["tidelog", "sql", query], check=True)


if __name__ == "__main__":
    main()
