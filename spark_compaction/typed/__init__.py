"""Fields of keys and values as columns of a topic's table (docs/history.md#typed-columns).

- `columns.py`: which fields there are, and which columns of the table they become. Pure.
- `decoding.py`: in the executors, records to columns; and what the data needs that was not planned.
- `json_values.py`, `avro_values.py`, `protobuf_values.py`: one format each.
- `registry.py`: schemas by their ids, from a schema registry.
- `planning.py`: in the driver, what to decode and into which columns.
"""
